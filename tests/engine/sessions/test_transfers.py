"""Saves and restores between the steps of an engine that swaps, shares and preempts: no KV is ever another's.

The executor of tests/engine/fakes.py knows what each slot must hold; here its slots can also be saved and restored.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from engine.core import EngineCore
from engine.process.check import check_idle
from engine.protocol import SessionCommand, SessionReply, TokenOutput
from engine.sessions import transfers
from engine.sessions.commands import SessionDesk
from tests.engine.fakes import VOCAB, AheadExecutor, ContentExecutor, expected_answer, request, run, tokens_of

WORDS = 12
"""Numbers of 16 bits, each exact in float32, that a slot is saved as: four for each of its three."""


class _Saving:
    """What a `Runner` has beside `launch`, for a `ContentExecutor`: a layer of one head, whose values are zero."""

    slots: list[list[tuple[int, int, int]]]
    block_size: int
    kv_layout = "digests"
    kv_dtype = "float32"
    model = SimpleNamespace(info=SimpleNamespace(dtype="float32", weights_dtype=""))

    def read_blocks(self, blocks: list[int]) -> Tensor:
        kv = torch.zeros(1, len(blocks), 2, 1, self.block_size, WORDS)
        for place, block in enumerate(blocks):
            for slot, numbers in enumerate(self.slots[block]):
                words = [float(number >> (16 * i) & 0xFFFF) for number in numbers for i in range(4)]
                kv[0, place, 0, 0, slot] = torch.tensor(words)
        return kv

    def write_blocks(self, blocks: list[int], kv: Tensor) -> None:
        assert kv.shape == (1, len(blocks), 2, 1, self.block_size, WORDS)
        for place, block in enumerate(blocks):
            for slot in range(self.block_size):
                words = [int(word) for word in kv[0, place, 0, 0, slot]]
                numbers = [sum(words[4 * n + i] << (16 * i) for i in range(4)) for n in range(3)]
                self.slots[block][slot] = (numbers[0], numbers[1], numbers[2])


class SavingExecutor(_Saving, ContentExecutor):
    pass


class SavingAhead(_Saving, AheadExecutor):
    pass


class Engine:
    """A core whose sessions can be saved and restored, in a folder of its own."""

    def __init__(self, num_blocks: int, block_size: int = 4, ahead: bool = False, **options: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pc-saved-"))
        (self.folder / "config.json").write_text("{}")
        executor: Any = (SavingAhead if ahead else SavingExecutor)(num_blocks, block_size, options.get("host_slots", 0))
        self.core = EngineCore(
            executor,
            num_blocks=num_blocks,
            block_size=block_size,
            **{"max_context": 10**6, "vocab_size": VOCAB, **options},
        )
        self.desk = SessionDesk(self.core, executor, self.folder)
        self.under_way = 0

    def do(self, action: str, session: str, file: str = "chat", salt: bytes = b"") -> SessionReply | None:
        target = str(self.folder / f"{file}.safetensors")
        command = SessionCommand(ticket=1, action=action, session=session, target=target, salt=salt)  # type: ignore[arg-type]
        reply = self.desk.answer(command)
        self.under_way += reply is None
        return reply

    def advance(self) -> list[SessionReply]:
        replies = self.desk.advance()
        self.under_way -= len(replies)
        return replies

    def finish(self) -> list[SessionReply]:
        """Until nothing is under way, or what is waits for a step: see `Transfers._can_move`."""
        replies, idle, deadline = [], 0, time.monotonic() + 20
        while self.under_way and idle < 5:
            assert time.monotonic() < deadline
            idle = idle + 1 if self.desk.has_work and self.core.blocks.moves_pending else 0
            replies += self.advance()
            if not self.desk.has_work:
                time.sleep(0.0005)
        return replies

    def prefer_swap(self, swap: bool = True) -> None:
        self.core.costs.token_s, self.core.costs.block_s = (1.0, 1e-9) if swap else (1e-9, 1.0)

    def close(self) -> None:
        self.desk.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(12, host_slots=12, prefix_cache=False)
    yield engine
    engine.close()


LONG = [6] * 20


def swapped_out_and_nothing_planned(engine: Engine) -> None:
    """A saved chat, and an answer that was swapped out, since a pinned chat held what it needed next.

    The step in which it was has planned nothing: its KV still lies in the blocks that it gave back.
    """
    core = engine.core
    core.add(request("saved", [4] * 13, 4, session="saved", keep=True))
    run(core)
    engine.do("save", "saved")
    assert [reply.ok for reply in engine.finish()] == [True]
    core.sessions.close("saved")
    core.add(request("pinned", [5] * 13, 4, session="pinned", keep=True))
    run(core)
    core.sessions.pin("pinned", True)
    engine.prefer_swap()
    core.add(request("long", LONG, 14))  # 33 tokens with KV, where there are 8 blocks of 4
    core.step()
    while core.scheduler.running:
        core.step()
    assert core.blocks.moves_pending
    core.sessions.pin("pinned", False)


def test_a_restore_does_not_write_into_what_is_still_to_be_swapped_out(engine: Engine) -> None:
    swapped_out_and_nothing_planned(engine)
    engine.do("restore", "saved")
    replies = engine.finish()
    assert tokens_of(run(engine.core)["long"]) == expected_answer(LONG, 14)[-1:]
    replies += engine.finish()
    assert [reply.ok for reply in replies] == [True]


def test_what_nobody_waits_for_any_more_is_not_swapped_out_and_holds_up_no_restore(engine: Engine) -> None:
    swapped_out_and_nothing_planned(engine)
    engine.core.abort("long")
    assert not engine.core.blocks.moves_pending
    engine.do("restore", "saved")
    assert [reply.ok for reply in engine.finish()] == [True]
    history = [*[4] * 13, *expected_answer([4] * 13, 4), 9]
    engine.core.add(request("on", history, 4, session="saved"))
    assert tokens_of(run(engine.core)["on"]) == expected_answer(history, 4)
    assert engine.core.blocks.host_used == 0  # type: ignore[attr-defined]


NAMES = ("a", "b", "c")


class Transferring(RuleBasedStateMachine):
    """Chats go on, are forked, saved and restored, and preempted by swap, over a pool that is too small."""

    engine: Engine

    @initialize(
        num_blocks=st.integers(3, 16),
        block_size=st.sampled_from([1, 2, 4]),
        step_tokens=st.integers(2, 24),
        prefix_cache=st.booleans(),
        host_slots=st.sampled_from([0, 4, 40]),
        ahead=st.booleans(),
        piece=st.sampled_from([1, 200, 1 << 20]),
    )
    def start(self, piece: int, **options: Any) -> None:
        self.piece, transfers._PIECE = transfers._PIECE, piece
        self.engine = Engine(**options)
        self.core = self.engine.core
        self.engine.prefer_swap()
        self.names = 0
        self.asked: dict[str, tuple[list[int], list[int]]] = {}
        self.ask([2, 1, 2], 3, session="a")
        self.step(12)
        self.transfer("save", "a", "x")
        self.engine.finish()

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        session=st.sampled_from(NAMES),
        salt=st.sampled_from([b"", b"s"]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def turn(self, prompt: list[int], max_tokens: int, **more: Any) -> None:
        self.ask(prompt, max_tokens, **more)

    @rule(data=st.data(), name=st.sampled_from(NAMES), more=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def go_on(self, data: st.DataObject, name: str, more: list[int]) -> None:
        session = self.core.sessions.get(name)
        if session and session.resident:
            salt, history = session.resident.salt, session.resident.tokens
            self.ask([*history[: data.draw(st.integers(0, len(history)))], *more], 4, session=name, salt=salt)

    def ask(self, prompt: list[int], max_tokens: int, **more: Any) -> None:
        self.names += 1
        name = str(self.names)
        self.core.add(request(name, prompt, max_tokens, keep=True, **more))
        self.asked[name] = (expected_answer(prompt, max_tokens, (), self.core.max_context), [])

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        if self.core.abort(name):
            del self.asked[name]

    @rule(source=st.sampled_from(NAMES), child=st.sampled_from(NAMES))
    def fork(self, source: str, child: str) -> None:
        if source != child:
            self.core.live_sessions.fork(source, child)

    @rule(name=st.sampled_from(NAMES), pinned=st.booleans())
    def pin(self, name: str, pinned: bool) -> None:
        if self.core.sessions.get(name):
            self.core.sessions.pin(name, pinned)

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        if self.core.sessions.get(name):
            self.core.sessions.close(name)

    @rule(action=st.sampled_from(["save", "restore"]), name=st.sampled_from(NAMES), file=st.sampled_from(["x", "y"]))
    def transfer(self, action: str, name: str, file: str) -> None:
        reply = self.engine.do(action, name, file)
        assert reply is None or (not reply.ok and reply.message)

    @rule(finish=st.booleans())
    def advance(self, finish: bool) -> None:
        for reply in self.engine.finish() if finish else self.engine.advance():
            assert reply.message

    @rule(swap=st.booleans())
    def prefer(self, swap: bool) -> None:
        self.engine.prefer_swap(swap)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            outputs, _ = self.core.step()
            for output in outputs:
                self.hear(output)

    @precondition(lambda self: not self.core.has_work)
    @rule(name=st.sampled_from(NAMES), file=st.sampled_from(["x", "y"]), room=st.integers(1, 8))
    def restore_while_swapped(self, name: str, file: str, room: int) -> None:
        """What is pinned leaves an answer so little that it is swapped out in a step that plans nothing."""
        self.engine.prefer_swap()
        size, blocks = self.core.blocks.block_size, self.core.blocks.pool.num_blocks
        held = max(1, (blocks - room) * size - 1)
        self.ask([1] * held, 1, session="held")
        self.step(3)
        if self.core.sessions.get("held"):
            self.core.sessions.pin("held", True)
        self.ask([2], max(1, room * size), session=NAMES[0])
        for _ in range(room * size + 4):
            self.step(1)
            if self.core.blocks.moves_pending:
                break
        if self.core.sessions.get("held"):
            self.core.sessions.pin("held", False)
        self.transfer("restore", name, file)
        self.engine.finish()

    def hear(self, output: TokenOutput) -> None:
        expected, said = self.asked[output.request_id]
        if output.finish_reason == "error":
            assert output.code in ("bad_request", "too_long", "overloaded")
            del self.asked[output.request_id]
            return
        said.extend(output.tokens)
        assert said == expected[: len(said)]
        if output.finish_reason:
            assert said == expected
            del self.asked[output.request_id]

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.blocks.check()
        self.core.scheduler.check()
        self.core.sessions.check()
        if not self.core.has_work:
            check_idle(self.core, self.engine.desk.sequences)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        transfers._PIECE = self.piece
        for _ in range(500):
            if not self.core.has_work and not self.engine.under_way:
                break
            self.step(1)
            self.advance(finish=True)
        assert not self.asked, "every request comes to its end"
        assert not self.engine.under_way, "and so does every save and restore"
        for name in self.core.sessions.names():
            self.core.sessions.close(name)
        assert self.core.blocks.pool.available == self.core.blocks.pool.num_blocks, "no block leaks"
        assert self.core.blocks.host_used == 0, "no host slot leaks"  # type: ignore[attr-defined]
        assert not self.core.blocks.moves_pending
        assert not list(self.engine.folder.glob("*.tmp"))
        self.engine.close()


Transferring.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestTransferring = pytest.mark.timeout(300)(Transferring.TestCase)
