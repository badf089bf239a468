"""The engine looks at its own books whenever it is idle: blocks, tables, sessions and queue must agree (design.md, 4).

A block that two sequences own by mistake shows as wrong tokens in somebody's answer, hours later perhaps. An engine
that finds its books wrong ends, loudly, and another one starts with empty ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from engine.core import EngineCore
from engine.requests.sequence import Sequence

_QUIET_S = 0.25
"""A check begins after so many seconds without work, so that it does not stand in a next turn's way."""
_EVERY_S = 5.0
"""Two checks are so many seconds apart at least."""
_SHARE = 100
"""Two checks are so many times as far apart as the last one took, at least."""


class BooksDisagree(RuntimeError):
    """An invariant of the block pool, the tables, the sessions or the queue does not hold. Always a bug."""


def check_idle(core: EngineCore, held: Iterable[Sequence] = ()) -> None:
    """Check everything, while no request is there. `held`: sequences that hold blocks for something else.

    Takes O(blocks of the pool and entries of all tables). Raises BooksDisagree, with the numbers.
    """
    try:
        core.blocks.check()
        core.scheduler.check()
        core.sessions.check()
        _check_owners(core, list(held))
    except AssertionError as error:
        pool = core.blocks.pool
        owned = sum(1 for references in pool.refs if references)
        raise BooksDisagree(
            f"the engine's books disagree: {error or 'no words'} ({pool.num_blocks} blocks: {pool.free} free, "
            f"{pool.cached} cached, {owned} owned; {len(core.blocks.sequences)} sequences with blocks, "
            f"{len(core.sessions.residents)} resident sessions, {len(core.scheduler.running)} running, "
            f"{len(core.scheduler.waiting)} waiting)"
        ) from error


def _check_owners(core: EngineCore, held: list[Sequence]) -> None:
    """Without a request, blocks belong to resident sessions and to what is being saved or restored."""
    owners = {session.resident.id for session in core.sessions.residents if session.resident is not None}
    owners |= {sequence.id for sequence in held}
    with_blocks = {sequence.id for sequence in core.blocks.sequences if sequence.table}
    assert not core.scheduler.running, "sequences run that belong to no request"
    assert not core.scheduler.waiting, "sequences wait that belong to no request"
    assert with_blocks == owners, (
        f"blocks belong to sequences {sorted(with_blocks - owners)} that are neither resident nor being moved, "
        f"or are missed by {sorted(owners - with_blocks)}"
    )
    assert not core.blocks.moves_pending, "KV is still to be moved for nobody"
    assert core.blocks.host_used == 0, "host memory holds KV of nobody"


class IdleCheck:
    """It checks after work, in a quiet moment, at most every few seconds and for a hundredth of the time."""

    def __init__(self, check: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._check, self._clock = check, clock
        self._due: float | None = None
        """The time of the next check; None while nothing was done since the last one."""
        self._not_before = 0.0

    def saw_work(self) -> None:
        self._due = max(self._clock() + _QUIET_S, self._not_before)

    @property
    def due_in(self) -> float | None:
        """The seconds until the next check; None means not before there was work."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def run_if_due(self) -> None:
        """Call it only while there is no work. Raises what the check raises."""
        if self.due_in != 0.0:
            return
        started = self._clock()
        self._check()
        ended = self._clock()
        self._due, self._not_before = None, ended + max(_EVERY_S, _SHARE * (ended - started))
