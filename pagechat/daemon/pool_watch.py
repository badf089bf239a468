"""The front's own view of the block pool, for `status`: a PoolMirror kept in step, and the throughput.

The mirror starts from a snapshot and follows the reports. Reports that come while the snapshot is under way are
kept; a gap in the numbers (this process was too slow, or the engine is a new one) asks for the next snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from engine.blocks.observe.mirror import MirrorGap, PoolMirror
from engine.protocol import NO_EVENT, PoolStatus, ShadowStatus, Snapshot, StepReport
from pagechat.daemon.errors import RequestError
from pagechat.protocol import SchedulerStatus, ThroughputStatus

log = logging.getLogger(__name__)

WINDOW_S = 10.0
_MARKS = {"free": ".", "cached": ":", "active": "+", "shared": "#"}
_MOST_EARLY_REPORTS = 10_000


class PoolWatch:
    """Fed with every report of the present engine."""

    def __init__(
        self, take_snapshot: Callable[[], Awaitable[Snapshot]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._take_snapshot = take_snapshot
        self._clock = clock
        self._mirror: PoolMirror | None = None
        self._early: deque[StepReport] = deque(maxlen=_MOST_EARLY_REPORTS)
        self._syncing: asyncio.Task[None] | None = None
        self._steps: deque[tuple[float, int, int]] = deque()
        """(clock, prompt tokens, generated tokens) of each step in the window."""
        self._shadows: list[ShadowStatus] = []
        self._compilations = 0

    def start(self) -> None:
        """A new engine is ready: forget the old one."""
        self.stop()
        self._resync()

    def stop(self) -> None:
        """There is no engine to watch."""
        if self._syncing is not None:
            self._syncing.cancel()
        self._mirror = self._syncing = None
        self._early.clear()
        self._shadows = []
        self._compilations = 0

    def feed(self, report: StepReport) -> None:
        if report.shadows:
            self._shadows = [msgspec.structs.replace(shadow, regions=[]) for shadow in report.shadows]
        self._compilations = report.compilations
        self._steps.append((self._clock(), report.prompt_tokens, report.generated_tokens))
        self._forget_old_steps()
        if self._mirror is None:
            self._early.append(report)
        else:
            self._apply(report)

    def pool(self) -> PoolStatus | None:
        return self._mirror.status() if self._mirror is not None else None

    def newest_sequences(self) -> dict[str, int]:
        """Of each session the highest number of its sequences that have blocks."""
        newest: dict[str, int] = {}
        for table in self._mirror.tables.values() if self._mirror is not None else ():
            newest[table.session] = max(table.seq, newest.get(table.session, table.seq))
        return newest

    def newest_sequence(self) -> int:
        """The highest number of all that have blocks; -1 when none has."""
        return max(self._mirror.tables, default=-1) if self._mirror is not None else -1

    def block_map(self) -> str:
        """A character a block, in their order: "." free, ":" cached, "+" active, "#" shared; empty without engine."""
        mirror = self._mirror
        if mirror is None:
            return ""
        return "".join(_MARKS[mirror.state(block)] for block in range(1, mirror.num_blocks + 1))

    def scheduler(self) -> SchedulerStatus | None:
        mirror = self._mirror
        if mirror is None:
            return None
        return SchedulerStatus(
            running=mirror.running,
            waiting=mirror.waiting,
            preemptions=mirror.preemptions,
            compilations=self._compilations,
        )

    def throughput(self) -> ThroughputStatus:
        self._forget_old_steps()
        return ThroughputStatus(
            prompt_tokens_per_s=sum(step[1] for step in self._steps) / WINDOW_S,
            generated_tokens_per_s=sum(step[2] for step in self._steps) / WINDOW_S,
        )

    def shadows(self) -> list[ShadowStatus]:
        """How other policies would fare with the requests; the last that this engine told."""
        return self._shadows

    async def settled(self) -> None:
        """Returns when no snapshot is under way."""
        if self._syncing is not None:
            await asyncio.wait((self._syncing,))

    def _apply(self, report: StepReport) -> None:
        assert self._mirror is not None
        try:
            self._mirror.apply(report)
        except (MirrorGap, LookupError) as error:  # LookupError: events that do not fit the state they should follow
            if isinstance(error, LookupError):
                log.exception("report %d does not fit the mirror", report.step)
            self._mirror = None
            self._early.append(report)
            self._resync()

    def _resync(self) -> None:
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())

    async def _sync(self) -> None:
        try:
            snapshot = await self._take_snapshot()
        except RequestError:
            return  # the engine has gone; `start` is called for the next
        finally:
            if self._syncing is asyncio.current_task():
                self._syncing = None
        self._mirror = PoolMirror.from_snapshot(snapshot)
        early = list(self._early)
        self._early.clear()
        for report in early:
            if self._mirror is None:
                self._early.append(report)
            else:
                self._apply(report)

    def _forget_old_steps(self) -> None:
        horizon = self._clock() - WINDOW_S
        while self._steps and self._steps[0][0] < horizon:
            self._steps.popleft()


def takeover() -> StepReport:
    """The empty report that makes every mirror ask for a snapshot of the new engine."""
    return StepReport(
        step=0,
        time=time.time(),
        duration_s=0.0,
        running=0,
        waiting=0,
        preemptions=0,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        first_event=NO_EVENT,
        events=[],
        lengths=[],
    )
