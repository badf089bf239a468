"""Physical blocks handed out as whole runs of consecutive blocks, for the policies that reserve.

The same counts as `BlockPool`, but kept by run: taking or returning a reservation of thousands of blocks
costs two slices and a look at the holes, not a step per block. Blocks have one owner and no content.
"""

from __future__ import annotations

from engine.blocks.observe.events import EventLog
from engine.blocks.pool import BlockPool, OutOfBlocks


class RunPool(BlockPool):
    """Blocks 1..num_blocks and the holes between the runs that are taken."""

    def __init__(self, num_blocks: int, events: EventLog) -> None:
        super().__init__(num_blocks, events)
        self._holes = {1: num_blocks}
        """The first block of each run of blocks without owner, and the run's length."""

    def find_run(self, count: int) -> int | None:
        """Returns the first block of the first hole of at least `count` blocks. It takes O(holes log holes)."""
        return next((first for first in sorted(self._holes) if self._holes[first] >= count), None)

    def take_run(self, first: int, count: int) -> None:
        """Give an owner to `count` blocks that begin a hole."""
        length = self._holes.get(first, 0)
        if length < count:
            raise OutOfBlocks(f"no hole of {count} blocks begins at block {first}")
        del self._holes[first]
        if length > count:
            self._holes[first + count] = length - count
        self.refs[first : first + count] = [1] * count
        self.available -= count

    def release_run(self, first: int, count: int) -> None:
        """Make `count` blocks a hole again, joined with the holes beside it."""
        if not all(self.refs[first : first + count]):
            raise ValueError(f"blocks {first}..{first + count - 1} released more often than taken")
        self.refs[first : first + count] = [0] * count
        self.available += count
        count += self._holes.pop(first + count, 0)
        for start, length in self._holes.items():
            if start + length == first:
                self._holes[start] = length + count
                return
        self._holes[first] = count

    def cached_blocks(self) -> list[int]:
        return []

    def check(self) -> None:
        end = 0
        for first, length in sorted(self._holes.items()):
            assert first > end, "holes neither touch nor overlap"
            assert not any(self.refs[first : first + length]), "a hole has no owner"
            end = first + length
        assert end <= self.num_blocks + 1, "holes lie inside the pool"
        assert sum(self._holes.values()) == self.available == self.refs[1:].count(0), (
            "every block is owned or in a hole"
        )
        assert self.refs[0] == 0, "the null block has no owner"
