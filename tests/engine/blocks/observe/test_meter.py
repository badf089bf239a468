"""Block-seconds: every moment of every block is charged once, to its owners in equal parts or to nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks.observe.meter import EARLIER, Meter
from engine.core import EngineCore
from engine.protocol import BeamParams, EventKind, PoolEvent, StepReport, TokenOutput, UsageReport, decode_reply, encode
from tests.engine.fakes import expected_answer, make_core, request, run


def event(kind: EventKind, block: int, seq: int, index: int, source: int = -1, session: str = "") -> PoolEvent:
    return PoolEvent(kind, block, seq, session or f"s{seq}", index, source)


def paid(report: UsageReport) -> dict[str, float]:
    """Block-seconds by session; one that two tenants have used stands in the report twice."""
    seconds: dict[str, float] = {}
    for owner in report.sessions:
        seconds[owner.name] = seconds.get(owner.name, 0.0) + owner.block_seconds
    return seconds


def total(report: UsageReport) -> float:
    return sum(paid(report).values()) + report.unowned_block_seconds


def test_a_shared_blocks_time_is_split_equally_among_its_owners_at_each_moment() -> None:
    # given the example drawn in meter.py: A owns block 1 from 0 to 12, B shares it from 4 to 10
    meter = Meter(3, 0.0)
    meter.apply([event("allocate", 1, 1, 0, session="A")], 0.0)
    meter.apply([event("share", 1, 2, 0, session="B")], 4.0)
    meter.apply([event("release", 1, 2, 0, session="B")], 10.0)
    meter.apply([event("release", 1, 1, 0, session="A")], 12.0)
    report = meter.usage(7, 15.0)
    # then A pays 4 + 6/2 + 2, B pays 6/2, and nobody pays for the rest of 3 blocks x 15 s
    assert paid(report) == {"A": 9.0, "B": 3.0}
    assert report.unowned_block_seconds == 3 * 15 - 12
    assert (report.ticket, report.seconds, report.num_blocks) == (7, 15.0, 3)


def test_blocks_still_held_are_charged_up_to_now() -> None:
    meter = Meter(2, 100.0)
    meter.apply([event("allocate", 1, 1, 0), event("allocate", 2, 1, 1)], 101.0)
    assert paid(meter.usage(0, 104.0)) == {"s1": 6.0}
    assert paid(meter.usage(0, 106.0)) == {"s1": 10.0}


def test_a_copy_on_write_ends_the_share_of_the_source_and_begins_a_block_of_its_own() -> None:
    meter = Meter(4, 0.0)
    meter.apply([event("allocate", 1, 1, 0), event("share", 1, 2, 0)], 0.0)
    meter.apply([event("copy", 3, 2, 0, source=1)], 2.0)
    # 2 s of half a block each, then 3 s of one each
    assert paid(meter.usage(0, 5.0)) == {"s1": 4.0, "s2": 4.0}


def test_a_cached_block_is_nobodys_until_it_is_hit() -> None:
    meter = Meter(1, 0.0)
    meter.apply([event("allocate", 1, 1, 0)], 0.0)
    meter.apply([event("cache", 1, -1, -1), event("release", 1, 1, 0)], 1.0)
    meter.apply([event("hit", 1, 2, 0)], 5.0)
    report = meter.usage(0, 7.0)
    assert paid(report) == {"s1": 1.0, "s2": 2.0}
    assert report.unowned_block_seconds == 4.0


# -- any history of the real engine ----------------------------------------------------------------


class Clock:
    """Stands still but for what it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ledger:
    """The same bill, made the slow way: at each tick, each table entry pays its part of the block's time."""

    def __init__(self, core: EngineCore, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        self.paid: dict[str, float] = {}
        self.unowned = 0.0
        self.prompt = self.cached = self.generated = 0

    def wait(self, seconds: float) -> None:
        pool = self.core.blocks.pool
        for table in self.core.snapshot(0).sequences:
            for block in table.blocks:
                self.paid[table.session] = self.paid.get(table.session, 0.0) + seconds / pool.refs[block]
        self.unowned += seconds * pool.available
        self.clock.now += seconds

    def do(self, action: Callable[[], Any]) -> None:
        action()
        self.hear(self.core.flush())

    def step(self) -> None:
        self.hear(self.core.step()[1])

    def hear(self, report: Any) -> None:
        if report:
            self.prompt += report.prompt_tokens
            self.cached += report.cached_tokens
            self.generated += report.generated_tokens


OPERATIONS = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, 2),  # stem
        st.integers(1, 6),  # tail
        st.integers(1, 9),  # max_tokens
        st.sampled_from([1, 1, 2, 3]),  # n
        st.sampled_from("abcd"),
        st.booleans(),  # keep
    ),
    st.tuples(st.just("beam"), st.integers(1, 9), st.integers(2, 4)),
    st.tuples(st.just("abort"), st.integers(0, 5)),
    st.tuples(st.just("fork"), st.sampled_from("abcd"), st.sampled_from("cdef")),
    st.tuples(st.just("close"), st.sampled_from("abcdef")),
    st.tuples(st.just("step"), st.integers(1, 4)),
)


@settings(max_examples=200, deadline=None)
@given(
    num_blocks=st.integers(3, 16),
    block_size=st.sampled_from([1, 2, 4]),
    step_tokens=st.integers(4, 16),
    policy=st.sampled_from(["paged", "paged", "paged", "contiguous-oracle"]),
    host_slots=st.sampled_from([0, 8]),
    operations=st.lists(st.tuples(OPERATIONS, st.floats(0.001, 10.0)), max_size=25),
)
def test_owners_and_nobody_together_pay_for_every_block_all_the_time(
    num_blocks: int,
    block_size: int,
    step_tokens: int,
    policy: str,
    host_slots: int,
    operations: list[tuple[tuple[Any, ...], float]],
) -> None:
    # given any history: prefix hits, forks, copies on write, beams, preemption, swap, residents, aborts
    clock = Clock()
    core = make_core(num_blocks, block_size, step_tokens=step_tokens, policy=policy, host_slots=host_slots, clock=clock)
    ledger = Ledger(core, clock)
    core.costs.token_s, core.costs.block_s = 1.0, 1e-9  # swap where there is room for it
    for number, (operation, seconds) in enumerate(operations):
        match operation:
            case ("add", stem, tail, max_tokens, n, session, keep):
                prompt = [1] * (5 * stem) + [number % 40] * tail
                core.add(
                    request(str(number), prompt, max_tokens, n=n, session=session, keep=keep, tenant="t" + session)
                )
            case ("beam", max_tokens, width):
                beam = BeamParams(width=width)
                core.add(request(str(number), [1, 2, 3], max_tokens, n=width, beam=beam, session="beam", tenant="tb"))
            case ("abort", back):
                ledger.do(lambda back=back, number=number: core.abort(str(number - back)))
            case ("fork", source, target) if source != target:
                ledger.do(lambda source=source, target=target: core.live_sessions.fork(source, target))
            case ("close", name) if core.sessions.get(name):
                ledger.do(lambda name=name: core.sessions.close(name))
            case ("step", count):
                for _ in range(count):
                    ledger.step()
                    ledger.wait(0.5)
        ledger.wait(seconds)
    # then the meter's bill is the slow one
    report = core.accounting.usage(3)
    assert total(report) == pytest.approx(num_blocks * clock.now)
    assert report.unowned_block_seconds == pytest.approx(ledger.unowned)
    assert {name: value for name, value in paid(report).items() if value} == pytest.approx(
        {name: value for name, value in ledger.paid.items() if value}
    )
    # and so are the sums by tenant, and the tokens
    assert sum(owner.block_seconds for owner in report.tenants) == pytest.approx(sum(paid(report).values()))
    for owners in (report.sessions, report.tenants):
        assert sum(owner.prompt_tokens_computed for owner in owners) == ledger.prompt
        assert sum(owner.prompt_tokens_cached for owner in owners) == ledger.cached
        assert sum(owner.generated_tokens for owner in owners) == ledger.generated
    assert decode_reply(encode(report)) == report


# -- owners ------------------------------------------------------------------------------------------


def test_tokens_computed_cached_and_generated_are_charged_to_session_and_tenant() -> None:
    core = make_core(32, block_size=4)
    core.add(request("first", [1, 2, 3, 4, 5, 6, 7, 8, 9], 3, session="chat", tenant="acme"))
    run(core)
    core.add(request("second", [1, 2, 3, 4, 5, 6, 7, 8, 20, 21], 2, session="chat", tenant="acme"))
    core.add(request("third", [30, 31], 4, session="other", tenant="acme"))
    run(core)
    report = core.accounting.usage(0)
    chat, other = report.sessions
    # the second prompt shares two full blocks with the first
    assert (chat.name, chat.tenant) == ("chat", "acme")
    assert (chat.prompt_tokens_computed, chat.prompt_tokens_cached, chat.generated_tokens) == (9 + 2, 8, 5)
    assert (other.prompt_tokens_computed, other.prompt_tokens_cached, other.generated_tokens) == (2, 0, 4)
    (acme,) = report.tenants
    assert (acme.prompt_tokens_computed, acme.prompt_tokens_cached, acme.generated_tokens) == (13, 8, 9)


def test_four_answers_to_a_prompt_pay_for_computing_it_once() -> None:
    core = make_core(64, block_size=4)
    core.add(request("r", list(range(20)), 5, n=4, session="chat"))
    run(core)
    (chat,) = core.accounting.usage(0).sessions
    assert (chat.prompt_tokens_computed, chat.generated_tokens) == (20, 4 * 5)


def test_a_session_forked_from_another_is_charged_to_its_tenant() -> None:
    clock = Clock()
    core = make_core(32, block_size=4, clock=clock)
    ledger = Ledger(core, clock)
    core.add(request("r", list(range(8)), 4, session="chat", keep=True, tenant="acme"))
    run(core)
    core.live_sessions.fork("chat", "branch")
    core.flush()
    ledger.wait(10.0)
    report = core.accounting.usage(0)
    assert {owner.name: owner.tenant for owner in report.sessions} == {"chat": "acme", "branch": "acme"}
    # 11 tokens in 3 blocks, each shared by both
    assert paid(report) == {"chat": 15.0, "branch": 15.0}


def test_sessions_long_gone_are_summed_up_and_nothing_is_lost() -> None:
    meter = Meter(8, 0.0, remembered=3)
    for number in range(10):
        session = f"s{number}"
        meter.begin(session, f"t{number % 2}")
        meter.apply([event("allocate", 1, number, 0)], float(number))
        meter.apply([event("release", 1, number, 0)], float(number) + 0.5)
        meter.end(session, f"t{number % 2}")
    report = meter.usage(0, 10.0)
    assert paid(report) == {"s7": 0.5, "s8": 0.5, "s9": 0.5, EARLIER: 3.5}
    assert {owner.name: owner.block_seconds for owner in report.tenants} == {"t0": 2.5, "t1": 2.5}
    assert total(report) == pytest.approx(8 * 10.0)


def test_a_session_that_waits_or_holds_blocks_is_not_forgotten() -> None:
    meter = Meter(8, 0.0, remembered=2)
    meter.begin("waiting", "t")
    meter.begin("resident", "t")
    meter.apply([event("allocate", 1, 99, 0, session="resident")], 0.0)
    meter.end("resident", "t")
    for number in range(20):
        meter.begin(f"s{number}", "t")
        meter.end(f"s{number}", "t")
    assert {"waiting", "resident"} <= set(paid(meter.usage(0, 1.0)))


def test_tenants_long_gone_are_bounded_too() -> None:
    meter = Meter(1, 0.0, remembered=3)
    for number in range(50):
        meter.begin(f"s{number}", f"t{number}")
        meter.end(f"s{number}", f"t{number}")
    assert len(meter.usage(0, 1.0).tenants) <= 3 + 3 + 1


# -- what clients are told is what they pay for ------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_an_answer_that_a_stop_token_ends_pays_for_what_was_told(ahead: bool) -> None:
    # with steps under way, the step after the stop token was counted too
    stop = expected_answer([1, 2, 3], 9)[4]
    core = make_core(64, ahead=ahead)
    for number in range(5):
        core.add(request(f"r{number}", [1, 2, 3], 9, stop=(stop,), session=f"chat {number % 2}", tenant="acme"))
    told = sum(len(output.tokens) for outputs in run(core).values() for output in outputs)
    assert told == 5 * len(expected_answer([1, 2, 3], 9, stop=(stop,)))
    report = core.accounting.usage(0)
    assert sum(session.generated_tokens for session in report.sessions) == told
    assert [tenant.generated_tokens for tenant in report.tenants] == [told]


@settings(max_examples=100, deadline=None)
@given(
    ahead=st.booleans(),
    num_blocks=st.integers(4, 16),
    stops=st.lists(st.integers(0, 49), max_size=3, unique=True),
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 12), st.integers(1, 3)),
            st.tuples(st.just("abort"), st.integers(0, 4), st.sampled_from([None, 0, 1])),
            st.tuples(st.just("step"), st.integers(1, 4), st.none()),
        ),
        max_size=25,
    ),
)
def test_generated_tokens_of_usage_are_those_told_after_any_history(
    ahead: bool, num_blocks: int, stops: list[int], operations: list[tuple[str, int, int | None]]
) -> None:
    # given any history of ends by stop tokens, aborts of requests and of single answers, and preemptions
    core = make_core(num_blocks, 2, ahead=ahead, step_tokens=8)
    told: dict[str, int] = {}
    reported = 0

    def hear(outputs: list[TokenOutput], report: StepReport | None) -> None:
        nonlocal reported
        for output in outputs:
            told[output.request_id] = told.get(output.request_id, 0) + len(output.tokens)
        reported += report.generated_tokens if report else 0

    for number, (operation, amount, other) in enumerate(operations):
        if operation == "add":
            core.add(request(str(number), [amount, number % 50], 12, stop=tuple(stops), n=other, session=str(number)))
        elif operation == "abort":
            output = core.abort(str(number - amount), other)
            hear([output] if output else [], None)
        else:
            for _ in range(amount):
                hear(*core.step())
    for _ in range(1000):
        if not core.has_work:
            break
        hear(*core.step())
    assert not core.has_work
    usage = {session.name: session.generated_tokens for session in core.accounting.usage(0).sessions}
    assert {name: count for name, count in usage.items() if count} == {n: c for n, c in told.items() if c}
    assert sum(usage.values()) == reported
