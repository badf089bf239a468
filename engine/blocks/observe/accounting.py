"""What the engine tells of its requests beside serving them: who pays for what (the meter), and how other
allocation policies would fare with the same requests (the shadows). Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from engine.blocks.observe.meter import Meter
from engine.blocks.observe.shadow import Shadows
from engine.protocol import AddRequest, PoolEvent, ShadowStatus, UsageReport
from engine.requests.sequence import Sequence
from engine.scheduling.step import ScheduledStep

SHADOW_INTERVAL_S = 0.5
"""Seconds pass between two looks at the shadows."""


class Accounting:
    """The meter and the shadows of one engine core."""

    def __init__(
        self, num_blocks: int, block_size: int, max_context: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.meter = Meter(num_blocks, clock())
        self.shadows = Shadows(num_blocks, block_size, max_context)
        self._next_shadows = clock()

    def begin(self, message: AddRequest) -> None:
        """A request was accepted."""
        self.meter.begin(message.session, message.tenant)
        answers = message.beam.width if message.beam else message.n
        prompt, longest = len(message.prompt), message.sampling.max_tokens
        self.shadows.arrive(message.request_id, prompt, longest, answers, message.session)

    def end(self, message: AddRequest) -> None:
        """A request that began has ended, however it did."""
        self.meter.end(message.session, message.tenant)
        self.shadows.finish(message.request_id)

    def fork(self, source: str, target: str) -> None:
        """Session `target` was forked from `source`."""
        self.meter.fork(source, target)

    def saw_step(self, step: ScheduledStep) -> None:
        """A step is about to be executed."""
        self.meter.saw_step(step)

    def saw_tokens(self, session: str, count: int) -> None:
        """So many tokens were told of answers of a session, or came to the beams of a search of it."""
        self.meter.saw_tokens(session, count)

    def apply(self, events: Iterable[PoolEvent], running: Iterable[Sequence]) -> list[ShadowStatus]:
        """The pool changed. Returns the shadows when it is time to look at them again, else nothing."""
        now = self._clock()
        self.meter.apply(events, now)
        if now < self._next_shadows:
            return []
        self._next_shadows = now + SHADOW_INTERVAL_S
        return self.shadows.status(running)

    def usage(self, ticket: int) -> UsageReport:
        """Who has used what, up to now; of the events of the pool, up to those applied."""
        return self.meter.usage(ticket, self._clock())
