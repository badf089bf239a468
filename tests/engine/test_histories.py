"""Any history of requests leaves the invariants true, the answers right and the mirror equal to the pool."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.blocks.mirror import MirrorGap, PoolMirror
from engine.core import EngineCore
from engine.protocol import Snapshot, StepReport, decode_report, encode
from tests.engine.fakes import expected_answer, make_core, request


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


class Histories(RuleBasedStateMachine):
    """Requests with common prefixes come, are aborted and are stepped over a pool that is too small."""

    core: EngineCore

    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.sampled_from([1, 2, 4, 8]),
        step_tokens=st.integers(1, 24),
        max_running=st.integers(1, 8),
        prefix_cache=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, step_tokens: int, max_running: int, prefix_cache: bool) -> None:
        self.core = make_core(
            num_blocks, block_size, step_tokens=step_tokens, max_running=max_running, prefix_cache=prefix_cache
        )
        self.mirror = PoolMirror.from_snapshot(self.core.snapshot(0))
        self.names = 0
        self.prompts: dict[str, tuple[list[int], int]] = {}
        self.answers: dict[str, list[int]] = {}

    @rule(
        stem=st.sampled_from([[], [1] * 6, [1] * 13, [1, 1, 1, 2, 2, 2, 2, 2]]),
        tail=st.lists(st.integers(0, 3), max_size=9),
        max_tokens=st.integers(1, 12),
        salt=st.sampled_from([b"", b"", b"s"]),
    )
    def add(self, stem: list[int], tail: list[int], max_tokens: int, salt: bytes) -> None:
        self.names += 1
        name = str(self.names)
        prompt = [*stem, *tail]
        self.core.add(request(name, prompt, max_tokens, salt=salt))
        if 0 < len(prompt) < self.core.max_context:
            self.prompts[name] = (prompt, max_tokens)
            self.answers[name] = []

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.prompts)))
        assert self.core.abort(name) is not None
        del self.prompts[name]

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            outputs, report = self.core.step()
            self.follow(report)
            for output in outputs:
                if output.finish_reason == "error":
                    continue
                self.answers[output.request_id].extend(output.tokens)
                if output.finish_reason:
                    prompt, max_tokens = self.prompts.pop(output.request_id)
                    assert self.answers.pop(output.request_id) == expected_answer(
                        prompt, max_tokens, context=self.core.max_context
                    )

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
        if hasattr(self, "core"):
            self.core.blocks.check()
            self.follow(self.core.flush())
            snapshot = self.core.snapshot(0)
            # Arrivals and aborts in the queue are counted by the next report, not by one of their own.
            self.mirror.running, self.mirror.waiting = snapshot.running, snapshot.waiting
            assert state_of_mirror(self.mirror) == state_of(snapshot)
            status, fresh = self.mirror.status(), PoolMirror.from_snapshot(snapshot).status()
            assert status == fresh
            assert status.free + status.cached + status.active + status.shared == self.core.blocks.pool.num_blocks
            lengths = sum(
                -(-t.length // t_size) for t in self.mirror.tables.values() for t_size in [self.mirror.block_size]
            )
            assert status.active + status.shared + status.saved == lengths

    def teardown(self) -> None:
        if hasattr(self, "core"):
            for _ in range(10_000):
                if not self.core.has_work:
                    break
                self.step(1)
            assert not self.core.has_work, "every request comes to its end"
            assert self.core.blocks.pool.available == self.core.blocks.pool.num_blocks


Histories.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase


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
