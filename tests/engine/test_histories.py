"""Any history of requests leaves the invariants true, the answers right and the mirror equal to the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.blocks.observe.mirror import MirrorGap, PoolMirror
from engine.core import EngineCore
from engine.process.check import check_idle
from engine.protocol import BeamParams, Snapshot, StepReport, TokenOutput, decode_report, encode
from tests.engine.fakes import expected_answer, expected_beams, make_core, request


def state_of(snapshot: Snapshot) -> dict[str, object]:
    return {
        "tables": {s.seq: (s.session, s.blocks, s.length) for s in snapshot.sequences},
        "cached": snapshot.cached,
        "counts": (snapshot.running, snapshot.waiting, snapshot.preemptions, snapshot.step, snapshot.next_event),
    }


def state_of_mirror(mirror: PoolMirror) -> dict[str, object]:
    return {
        "tables": {t.seq: (t.session, t.blocks, t.length) for t in mirror.tables.values()},
        "cached": list(mirror.cached),
        "counts": (mirror.running, mirror.waiting, mirror.preemptions, mirror.step, mirror.next_event),
    }


@dataclass
class Asked:
    """A request under way: what it should say in the end, and what it has said."""

    answers: list[list[int]]
    said: dict[int, list[int]]
    ended: set[int]


STOP = (7,)


class Histories(RuleBasedStateMachine):
    """Requests with common prefixes come, fork, search, resume and are aborted, over a pool that is too small."""

    core: EngineCore

    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.sampled_from([1, 2, 4, 8]),
        step_tokens=st.integers(1, 24),
        max_running=st.integers(1, 8),
        prefix_cache=st.booleans(),
        host_slots=st.sampled_from([0, 3, 30]),
        ahead=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        step_tokens: int,
        max_running: int,
        prefix_cache: bool,
        host_slots: int,
        ahead: bool,
    ) -> None:
        self.core = make_core(
            num_blocks,
            block_size,
            step_tokens=step_tokens,
            max_running=max_running,
            prefix_cache=prefix_cache,
            host_slots=host_slots,
            ahead=ahead,
        )
        self.mirror = PoolMirror.from_snapshot(self.core.snapshot(0))
        self.names = 0
        self.asked: dict[str, Asked] = {}

    @rule(
        stem=st.sampled_from([[], [1] * 6, [1] * 13, [1, 1, 1, 2, 2, 2, 2, 2]]),
        tail=st.lists(st.integers(0, 3), max_size=9),
        max_tokens=st.integers(1, 12),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        session=st.sampled_from(["a", "b", "c"]),
        keep=st.booleans(),
        salt=st.sampled_from([b"", b"", b"s"]),
        priority=st.sampled_from([0, 0, -1, 1]),
    )
    def add(self, stem: list[int], tail: list[int], max_tokens: int, n: int, **more: Any) -> None:
        prompt = [*stem, *tail]
        answers = [
            expected_answer(prompt, max_tokens, STOP, self.core.max_context, seed) for seed in range(n) if prompt
        ]
        self.ask(prompt, answers, max_tokens, n=n, **more)

    @rule(
        prompt=st.lists(st.integers(0, 3), min_size=1, max_size=14),
        max_tokens=st.integers(1, 8),
        beam=st.builds(
            BeamParams,
            width=st.integers(2, 4),
            length_penalty=st.sampled_from([0.0, 1.0, 2.0]),
            early_stopping=st.sampled_from([True, False, "never"]),
        ),
    )
    def search(self, prompt: list[int], max_tokens: int, beam: BeamParams) -> None:
        room = min(max_tokens, self.core.max_context - len(prompt))
        answers = expected_beams(prompt, room, beam, STOP) if room > 0 else []
        self.ask(prompt, answers, max_tokens, n=beam.width, beam=beam)

    @rule(data=st.data(), keep=st.booleans(), more=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def continue_session(self, data: st.DataObject, keep: bool, more: list[int]) -> None:
        """The next turn of a chat: what was said, sometimes rewritten, and something new."""
        names = [name for name in self.core.sessions.names() if self.core.sessions.get(name).tokens]
        if names:
            name = data.draw(st.sampled_from(names))
            history = self.core.sessions.get(name).tokens
            cut = data.draw(st.integers(1, len(history)))
            prompt = [*history[:cut], *more]
            answers = [expected_answer(prompt, 5, STOP, self.core.max_context)]
            self.ask(prompt, answers, 5, session=name, keep=keep)

    def ask(self, prompt: list[int], answers: list[list[int]], max_tokens: int, **more: Any) -> None:
        self.names += 1
        name = str(self.names)
        self.core.add(request(name, prompt, max_tokens, STOP, **more))
        self.asked[name] = Asked(answers, {}, set())

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        if self.core.abort(name) is not None:
            del self.asked[name]

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), priority=st.integers(-2, 2))
    def set_priority(self, data: st.DataObject, priority: int) -> None:
        self.core.set_priority(data.draw(st.sampled_from(sorted(self.asked))), priority)

    @rule(
        source=st.sampled_from(["a", "b", "c"]),
        child=st.sampled_from(["c", "d", "e"]),
        tokens=st.one_of(st.none(), st.integers(1, 20)),
    )
    def fork_session(self, source: str, child: str, tokens: int | None) -> None:
        if source != child:
            before = self.core.blocks.pool.available
            shared = self.core.live_sessions.fork(source, child, tokens)
            assert self.core.blocks.pool.available >= before, "a fork takes no block"
            if shared:
                resident = self.core.sessions.get(child).resident
                assert shared <= (tokens or shared)
                assert len(resident.table) == -(-shared // self.core.blocks.block_size), "and shares no more than asked"

    @rule(name=st.sampled_from(["a", "b", "c", "d", "e"]), what=st.sampled_from(["pin", "unpin", "close"]))
    def manage_session(self, name: str, what: str) -> None:
        if self.core.sessions.get(name):
            if what == "close":
                self.core.sessions.close(name)
            else:
                self.core.sessions.pin(name, what == "pin")

    @rule(swap=st.booleans())
    def prefer(self, swap: bool) -> None:
        """From now on one way of preempting is measured to be the cheaper one."""
        self.core.costs.token_s, self.core.costs.block_s = (1.0, 1e-9) if swap else (1e-9, 1.0)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            outputs, report = self.core.step()
            self.follow(report)
            for output in outputs:
                self.hear(output)

    def hear(self, output: TokenOutput) -> None:
        asked = self.asked[output.request_id]
        if output.finish_reason == "error":
            # Refused, or squeezed out by what is pinned or by its own siblings: the numbers are in the message.
            assert output.code in ("bad_request", "too_long", "overloaded")
            assert output.message
            del self.asked[output.request_id]
            return
        said = asked.said.setdefault(output.index, [])
        said.extend(output.tokens)
        if output.finish_reason:
            assert said == asked.answers[output.index]
            asked.ended.add(output.index)
            if len(asked.ended) == len(asked.answers):
                del self.asked[output.request_id]
        else:
            assert said == asked.answers[output.index][: len(said)]

    @rule()
    def join_late(self) -> None:
        """A client that asks for a snapshot now is where one that followed from the start is."""
        self.follow(self.core.flush())
        self.mirror = PoolMirror.from_snapshot(self.core.snapshot(0))

    def follow(self, report: StepReport | None) -> None:
        if report:
            self.mirror.apply(decode_report(encode(report)))

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.blocks.check()
        self.core.scheduler.check()
        self.core.sessions.check()
        if not self.core.has_work:
            check_idle(self.core)
        self.follow(self.core.flush())
        snapshot = self.core.snapshot(0)
        # Arrivals and aborts in the queue are counted by the next report, not by one of their own.
        self.mirror.running, self.mirror.waiting = snapshot.running, snapshot.waiting
        assert state_of_mirror(self.mirror) == state_of(snapshot)
        status = self.mirror.status()
        assert status == PoolMirror.from_snapshot(snapshot).status()
        assert status.free + status.cached + status.active + status.shared == self.core.blocks.pool.num_blocks
        entries = sum(len(table.blocks) for table in self.mirror.tables.values())
        assert status.active + status.shared + status.saved == entries

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(10_000):
            if not self.core.has_work:
                break
            self.step(1)
        assert not self.core.has_work, "every request comes to its end"
        assert not self.asked
        for name in self.core.sessions.names():
            self.core.sessions.close(name)
        assert self.core.blocks.pool.available == self.core.blocks.pool.num_blocks, "no block leaks"
        assert self.core.blocks.host_used == 0, "no host slot leaks"


Histories.TestCase.settings = settings(max_examples=2000, stateful_step_count=30, deadline=None)
TestHistories = pytest.mark.timeout(900)(Histories.TestCase)  # longer than other tests, on a busy machine


def test_a_missing_report_is_noticed() -> None:
    core = make_core(16)
    mirror = PoolMirror.from_snapshot(core.snapshot(0))
    core.add(request("a", list(range(10))))
    core.step()
    _, report = core.step()
    assert report is not None
    try:
        mirror.apply(report)
    except MirrorGap:
        return
    raise AssertionError("the gap went unnoticed")


def test_reports_that_the_snapshot_already_holds_are_skipped() -> None:
    core = make_core(16)
    core.add(request("a", list(range(10))))
    _, early = core.step()
    mirror = PoolMirror.from_snapshot(core.snapshot(0))
    assert early is not None
    mirror.apply(early)
    _, late = core.step()
    assert late is not None
    mirror.apply(late)
    assert state_of_mirror(mirror) == state_of(core.snapshot(0))
