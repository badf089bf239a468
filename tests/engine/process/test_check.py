"""The engine checks its books while it is idle, and ends when they are wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.core import EngineCore
from engine.process import check, loop
from engine.process.check import BooksDisagree, IdleCheck, check_idle
from engine.protocol import Command, Ping, Shutdown
from tests.engine.fakes import expected_answer, make_core, request, run, tokens_of


def after_some_work() -> EngineCore:
    """Two chats that share blocks, one of them pinned, and cached blocks of a third request."""
    core = make_core(40, block_size=4, host_slots=8)
    core.add(request("1", [1] * 10, 4, session="a", keep=True))
    core.add(request("2", [2] * 9, 4, session="gone"))
    run(core)
    core.live_sessions.fork("a", "b")
    core.sessions.pin("b", True)
    return core


def test_right_books_pass() -> None:
    check_idle(after_some_work())


def own_more(core: EngineCore) -> None:
    core.blocks.pool.refs[core.blocks.pool.take(1)[0]] += 1


def lose_a_block(core: EngineCore) -> None:
    resident = core.sessions.residents[0].resident
    assert resident is not None
    resident.table.pop()


def share_by_mistake(core: EngineCore) -> None:
    first, second = (session.resident for session in core.sessions.residents)
    assert first is not None
    assert second is not None
    first.table[0] = second.table[-1]


def forget_a_resident(core: EngineCore) -> None:
    core.sessions._residents.pop("a")


def leave_a_sequence(core: EngineCore) -> None:
    core.blocks.grow(sequence := core.live_sessions.new_sequence("left", [1] * 4, b""), 4)
    core.blocks._track(sequence)


def leave_moves(core: EngineCore) -> None:
    core.blocks._moves.swap_out.append((1, 0))  # type: ignore[attr-defined]


def leave_host_memory(core: EngineCore) -> None:
    core.blocks._host_free.pop()  # type: ignore[attr-defined]


def give_a_slot_back_twice(core: EngineCore) -> None:
    core.blocks._host_free.append(core.blocks._host_free[0])  # type: ignore[attr-defined]


def miscount(core: EngineCore) -> None:
    core.blocks.pool.cached += 1


def leave_one_in_the_queue(core: EngineCore) -> None:
    core.scheduler.add(core.live_sessions.new_sequence("left", [1] * 4, b""))


def leave_one_running(core: EngineCore) -> None:
    core.scheduler.running.append(core.live_sessions.new_sequence("left", [1] * 4, b""))


WRONG: list[Callable[[EngineCore], None]] = [
    own_more,
    lose_a_block,
    share_by_mistake,
    forget_a_resident,
    leave_a_sequence,
    leave_moves,
    leave_host_memory,
    give_a_slot_back_twice,
    miscount,
    leave_one_in_the_queue,
    leave_one_running,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_books_are_told_with_the_numbers(wrong: Callable[[EngineCore], None]) -> None:
    core = after_some_work()
    wrong(core)
    with pytest.raises(BooksDisagree, match="40 blocks"):
        check_idle(core)


def test_a_check_comes_after_work_in_a_quiet_moment_and_not_often() -> None:
    now = [100.0]
    checks: list[float] = []

    def look() -> None:
        checks.append(now[0])
        now[0] += 0.2  # a large pool

    checking = IdleCheck(look, lambda: now[0])
    assert checking.due_in is None, "before any work there is nothing to check"
    checking.run_if_due()
    checking.saw_work()
    checking.run_if_due()
    assert checks == []
    assert checking.due_in == pytest.approx(0.25)
    now[0] += 0.25
    checking.run_if_due()
    assert checks == [100.25]
    assert checking.due_in is None
    checking.saw_work()
    assert checking.due_in == pytest.approx(20.0), "a hundred times what the last one took"


def test_checking_takes_little_time() -> None:
    """100,000 blocks, which a large GPU holds for a small model: a tenth of a second is a hundredth of ten seconds."""
    core = make_core(100_000, block_size=16)
    core.add(request("1", [1] * 300, 4, session="a", keep=True))
    run(core)
    started = time.process_time()
    check_idle(core)
    assert time.process_time() - started < 1.0


class Scripted:
    """Commands at their times, instead of sockets."""

    def __init__(self, commands: list[Command | float]) -> None:
        self.commands, self.waits, self.replies = commands, [], []
        self.waits: list[float | None]

    def take(self, timeout: float | None) -> Command | None:
        """A number: that long nothing comes."""
        if timeout != 0:
            self.waits.append(timeout)
        if self.commands and not isinstance(self.commands[0], float):
            command = self.commands.pop(0)
            assert not isinstance(command, float)
            return command
        if timeout != 0 and self.commands:
            time.sleep(min(timeout if timeout is not None else 9, self.commands.pop(0)))  # type: ignore[call-overload]
        return None

    def reply(self, message: Any) -> None:
        self.replies.append(message)

    publish = reply


class NoDesk:
    has_work = False
    sequences = ()

    def advance(self) -> tuple[Any, ...]:
        return ()


def test_the_loop_checks_when_it_is_idle_and_ends_with_wrong_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_QUIET_S", 0.01)
    core = make_core(40)
    io = Scripted([request("1", [1] * 10, 4, session="a", keep=True), 0.02, Ping(ticket=1), 0.02, 9.0])
    core.blocks.pool.take(1)  # an owner that no table knows
    with pytest.raises(BooksDisagree, match="references equal table entries"):
        loop._serve(core, NoDesk(), io)  # type: ignore[arg-type]
    said = [output for message in io.replies if hasattr(message, "outputs") for output in message.outputs]
    assert tokens_of(said) == expected_answer([1] * 10, 4), "what was asked before is answered"


def test_the_loop_waits_for_ever_once_it_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_QUIET_S", 0.01)
    io = Scripted([request("1", [1] * 10, 4, session="a", keep=True), 0.02, 0.02, Ping(ticket=1), Shutdown()])
    loop._serve(make_core(40), NoDesk(), io)  # type: ignore[arg-type]
    assert io.waits[-1] is None
    assert io.waits[0] is None
    assert any(wait is not None for wait in io.waits)
