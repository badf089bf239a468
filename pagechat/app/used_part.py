"""How far the used part of the pool reaches on the map: up to the last place with content. It draws nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from pagechat.app.arrangement import Arrangement
from pagechat.app.pool_view import PoolView

EVERY_S = 2.0
"""How often it is looked whether the part has become smaller: a map that shrinks at once would jump about."""


class UsedPart:
    """Of a `PoolView` in an `Arrangement`. Growing costs what has changed, and not the length of the pool."""

    def __init__(self, view: PoolView, arrangement: Arrangement, clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._arrangement, self._clock = view, arrangement, clock
        self.end = 0
        """Places up to the last with content."""
        self._next_at = 0.0
        self._version = -1

    def forget(self) -> None:
        """Another pool, or another order."""
        self.end, self._version, self._next_at = self._found(), self._view.version, 0.0

    def grown(self, dirty: set[int] | None) -> bool:
        """Look at the blocks that changed (None: all may have). True when the part ends elsewhere now."""
        before = self.end
        if dirty is None or (self._clock() >= self._next_at and self._version != self._view.version):
            found = self._found()
            self.end = found if found > before or 2 * found < before or dirty is None else before
            self._next_at, self._version = self._clock() + EVERY_S, self._view.version
        elif self._arrangement.order == "id":
            self.end = max([before, *(block for block in dirty if self._holds(block))])
        else:
            self.end = max(before, self._count())
        return self.end != before

    def _found(self) -> int:
        if self._arrangement.order != "id":
            return self._count()
        blocks = range(self._view.num_blocks, 0, -1)
        return next((block for block in blocks if self._holds(block)), 0)

    def _holds(self, block: int) -> bool:
        mirror = self._view.mirror
        return mirror is not None and bool(mirror.refs[block] or block in mirror.cached)

    def _count(self) -> int:
        """In the other orders blocks with content come first."""
        mirror = self._view.mirror
        return mirror.owned_blocks + len(mirror.cached) if mirror is not None else 0
