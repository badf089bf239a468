"""In which order the map shows the blocks: by physical id, by owner, or by age. Places count from 1, as blocks do.

```
id      as they lie in memory: holes and scatter are seen
owner   chat by chat, each in its table's order; then cached blocks, then free ones
age     what was written last comes first; what was there before anybody looked stands behind; free ones last
```
Where blocks stand is found anew now and then, not with every change: they would jump about under the eye.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from pagechat.app.pool_view import PoolView

Order = Literal["id", "owner", "age"]
ORDERS: tuple[Order, ...] = ("id", "owner", "age")
EVERY_S = 2.0
DUTY = 0.02
"""Most of the time that arranging may take: a large pool is arranged more rarely."""


class Arrangement:
    """Where each block of a `PoolView` stands."""

    def __init__(self, view: PoolView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._clock = clock
        self.order: Order = "id"
        self._blocks: list[int] = []
        """The block at each place; empty while the order is that of ids."""
        self._places: list[int] = []
        self._version = -1
        self._next_at = 0.0

    def choose(self, order: Order) -> None:
        self.order = order
        self._arrange()

    def block(self, place: int) -> int:
        """The block that stands there."""
        return self._blocks[place] if self._blocks else place

    def place(self, block: int) -> int:
        """Where the block stands."""
        return self._places[block] if self._places else block

    def refresh(self) -> bool:
        """Arrange the blocks anew when it is time and something has changed. True when it was done."""
        fits = not self._blocks or len(self._blocks) == self._view.num_blocks + 1
        due = self._clock() >= self._next_at and self._version != self._view.version
        if self.order == "id" or (fits and not due):
            return False
        self._arrange()
        return True

    def _arrange(self) -> None:
        began = self._clock()
        mirror = self._view.mirror
        if self.order == "id" or mirror is None:
            self._blocks, self._places = [], []
            return
        blocks = self._by_owner() if self.order == "owner" else self._by_age()
        self._blocks = [0, *blocks]
        self._places = [0] * len(self._blocks)
        for place, block in enumerate(self._blocks):
            self._places[block] = place
        self._version = self._view.version
        took = self._clock() - began
        self._next_at = began + max(EVERY_S, took / DUTY)

    def _by_owner(self) -> list[int]:
        mirror, letters = self._view.mirror, self._view.letters
        assert mirror is not None
        tables = sorted(mirror.tables.values(), key=lambda table: (letters.get(table.session), table.seq))
        owned = dict.fromkeys(block for table in tables for block in table.blocks)  # a shared one with its first owner
        return [*owned, *_rest(mirror.num_blocks, owned, mirror.cached)]

    def _by_age(self) -> list[int]:
        mirror, written = self._view.mirror, self._view.written
        assert mirror is not None
        full = [block for block in range(1, mirror.num_blocks + 1) if mirror.refs[block] or block in mirror.cached]
        full.sort(key=lambda block: -written(block))
        return [*full, *_rest(mirror.num_blocks, dict.fromkeys(full), {})]


def _rest(num_blocks: int, placed: dict[int, None], cached: dict[int, None]) -> list[int]:
    """Blocks that have no place yet: cached ones, the last to be evicted first, then free ones."""
    behind = [block for block in reversed(cached) if block not in placed]
    free = [block for block in range(1, num_blocks + 1) if block not in placed and block not in cached]
    return behind + free
