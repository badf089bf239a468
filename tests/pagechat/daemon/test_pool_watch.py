"""The front's own view of the pool: in step after any gap, and throughput over the last ten seconds."""

from __future__ import annotations

import asyncio

import msgspec

from engine.protocol import PoolEvent, ShadowStatus, Snapshot, StepReport
from pagechat.daemon.errors import RequestError
from pagechat.daemon.pool_watch import PoolWatch


def report(step: int, first_event: int = 0, events: int = 0, prompt: int = 0, generated: int = 0) -> StepReport:
    """Each event takes the next block, for a sequence of the report's number."""
    return StepReport(
        step=step,
        time=0.0,
        duration_s=0.0,
        running=1,
        waiting=step,
        preemptions=0,
        prompt_tokens=prompt,
        cached_tokens=0,
        generated_tokens=generated,
        first_event=first_event,
        events=[PoolEvent("allocate", first_event + number + 1, step, "s", number) for number in range(events)],
        lengths=[],
    )


def snapshot(step: int, next_event: int) -> Snapshot:
    """As if reports 0..step had taken `next_event` blocks for nobody who still has them."""
    return Snapshot(
        ticket=0,
        next_event=next_event,
        step=step,
        num_blocks=100,
        block_size=16,
        sequences=[],
        cached=[],
        addressable=[],
        running=0,
        waiting=0,
        preemptions=0,
    )


class Engine:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[Snapshot | RequestError] = asyncio.Queue()

    async def take(self) -> Snapshot:
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, RequestError):
            raise answer
        return answer


async def test_reports_that_come_before_the_snapshot_are_kept_and_those_it_holds_are_dropped() -> None:
    engine = Engine()
    watch = PoolWatch(engine.take)
    watch.start()
    for step in range(4):
        watch.feed(report(step, first_event=2 * step, events=2))
    assert watch.pool() is None
    engine.answers.put_nowait(snapshot(step=1, next_event=4))
    await watch.settled()
    pool, scheduler = watch.pool(), watch.scheduler()
    assert pool is not None
    assert scheduler is not None
    # reports 2 and 3 came after the snapshot: 4 blocks
    assert (pool.active, pool.free, scheduler.waiting) == (4, 96, 3)


async def test_a_gap_asks_for_one_new_snapshot() -> None:
    engine = Engine()
    watch = PoolWatch(engine.take)
    watch.start()
    engine.answers.put_nowait(snapshot(step=0, next_event=0))
    await watch.settled()
    watch.feed(report(5, first_event=10, events=1))
    watch.feed(report(6, first_event=11, events=1))
    assert watch.pool() is None
    engine.answers.put_nowait(snapshot(step=5, next_event=11))
    await watch.settled()
    pool = watch.pool()
    assert pool is not None
    assert (pool.active, engine.asked) == (1, 2)


async def test_a_report_that_makes_no_sense_asks_for_a_snapshot_too() -> None:
    engine = Engine()
    watch = PoolWatch(engine.take)
    watch.start()
    engine.answers.put_nowait(snapshot(step=-1, next_event=0))
    await watch.settled()
    nonsense = report(0, events=1)
    nonsense.events[0] = PoolEvent("release", 3, 99)
    watch.feed(nonsense)
    engine.answers.put_nowait(snapshot(step=0, next_event=1))
    await watch.settled()
    assert watch.pool() is not None


async def test_a_new_engine_starts_anew_and_an_old_answer_is_not_taken_for_its() -> None:
    engine = Engine()
    watch = PoolWatch(engine.take)
    watch.start()
    await asyncio.sleep(0)
    watch.start()
    engine.answers.put_nowait(snapshot(step=-1, next_event=0))
    await watch.settled()
    watch.feed(report(0, events=3))
    pool = watch.pool()
    assert pool is not None
    assert pool.active == 3


async def test_an_engine_that_ends_leaves_no_pool_behind() -> None:
    engine = Engine()
    watch = PoolWatch(engine.take)
    watch.start()
    engine.answers.put_nowait(RequestError("engine_died", "gone"))
    await watch.settled()
    assert (watch.pool(), watch.scheduler()) == (None, None)


async def test_the_last_shadows_stay_until_the_engine_is_another() -> None:
    watch = PoolWatch(Engine().take)
    shadow = ShadowStatus(
        policy="paged", requests_held=1, slots_used=2, reserved_waste=0, internal_waste=3, external_waste=0
    )
    watch.feed(msgspec.structs.replace(report(0), shadows=[shadow]))
    watch.feed(report(1))
    assert watch.shadows() == [shadow]
    watch.start()
    assert watch.shadows() == []
    watch.stop()


async def test_throughput_is_that_of_the_last_ten_seconds() -> None:
    now = 0.0
    watch = PoolWatch(Engine().take, clock=lambda: now)
    watch.feed(report(0, prompt=50, generated=1))
    now = 6.0
    watch.feed(report(1, prompt=0, generated=9))
    speed = watch.throughput()
    assert (speed.prompt_tokens_per_s, speed.generated_tokens_per_s) == (5.0, 1.0)
    now = 11.0
    speed = watch.throughput()
    assert (speed.prompt_tokens_per_s, speed.generated_tokens_per_s) == (0.0, 0.9)
    now = 20.0
    assert watch.throughput().generated_tokens_per_s == 0.0
