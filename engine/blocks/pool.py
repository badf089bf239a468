"""Physical blocks: how many owners each has, which hold reusable content, and who is taken next.

The pool counts references and keeps content addressable; it does not know sequences or tables
(paged.py does) and holds no tensor. Every operation is O(1) for each block it is asked for.

```
        head                                                       tail
list:   free  free  free | cached (oldest) ............. cached (newest)
        ^ take() begins here, evicting content if there is any
```
Free blocks (no content) stand before cached ones (content, no owner), so content is dropped only
when nothing else is left, least recently used first.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.blocks.observe.events import EventLog


class OutOfBlocks(RuntimeError):
    """`take` on a pool whose blocks all have owners: the caller did not look at `available`."""


class BlockPool:
    """Reference counts, the free/cached list and the content index of `num_blocks` blocks, ids 1..num_blocks."""

    def __init__(self, num_blocks: int, events: EventLog) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.available = num_blocks
        """The number of blocks without owner, free and cached."""
        self.cached = 0
        self.refs = [0] * (num_blocks + 1)
        """The references to each block; that of entry 0, the null block, stays 0."""
        self._events = events
        self._hash: list[bytes | None] = [None] * (num_blocks + 1)
        self._tokens: list[tuple[int, ...]] = [()] * (num_blocks + 1)
        self._index: dict[bytes, int] = {}
        # The blocks form a doubly linked list, and 0 is its sentinel: _next[0] is the head, _prev[0] the tail.
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]

    @property
    def free(self) -> int:
        """The number of blocks without content."""
        return self.available - self.cached

    def take(self, count: int) -> list[int]:
        """Returns the next blocks, each with one reference and no content; cached blocks lose their content first."""
        if count > self.available:
            raise OutOfBlocks(f"{count} of {self.num_blocks} blocks asked for, {self.available} without owner")
        refs, hashes, after = self.refs, self._hash, self._next
        taken, block = [], after[0]
        for _ in range(count):
            refs[block] = 1
            taken.append(block)
            if hashes[block] is not None:
                self._evict(block)
            block = after[block]
        after[0], self._prev[block] = block, 0
        self.available -= count
        return taken

    def acquire(self, block: int) -> bool:
        """Add a reference to a block with content or owners. Returns True when it had no owner (a cache hit)."""
        revived = self.refs[block] == 0
        if revived:
            self._unlink(block)
            self.available -= 1
            self.cached -= 1
        self.refs[block] += 1
        return revived

    def release(self, blocks: Iterable[int]) -> None:
        """Take a reference from each block. Those that then have no owner are listed again.

        Blocks with content go to the list's tail, one behind another; those without go to its head, each before the
        last.
        """
        refs, hashes = self.refs, self._hash
        free: list[int] = []
        cached: list[int] = []
        for block in blocks:
            left = refs[block] - 1
            if left < 0 or block == 0:
                raise ValueError(f"block {block} released more often than taken")
            refs[block] = left
            if left == 0:
                (free if hashes[block] is None else cached).append(block)
        self._link(0, reversed(free))
        self._link(self._prev[0], cached)
        self.available += len(free) + len(cached)
        self.cached += len(cached)

    def register(self, block: int, chain_hash: bytes, tokens: tuple[int, ...]) -> None:
        """Make the content of a full block addressable. The first block with this content keeps the name."""
        if self._hash[block] is not None or chain_hash in self._index:
            return
        self._hash[block] = chain_hash
        self._tokens[block] = tokens
        self._index[chain_hash] = block
        self._events.add("cache", block)

    def find(self, chain_hash: bytes, tokens: tuple[int, ...]) -> int | None:
        """Returns the block with this content. It compares the tokens too, so no hash collision can deceive it."""
        block = self._index.get(chain_hash)
        return block if block is not None and self._tokens[block] == tokens else None

    def addressable(self, block: int) -> bool:
        """Returns True when the block's content can be found by hash; such a block is full and must not be written."""
        return self._hash[block] is not None

    def name_of(self, block: int) -> bytes | None:
        """Returns the hash by which the block's content is found; None when it cannot be, or there is no such block."""
        return self._hash[block] if 0 < block <= self.num_blocks else None

    def cached_blocks(self) -> list[int]:
        """Returns the blocks with content and no owner, the next victim first. It takes O(list), for snapshots."""
        return [block for block in self._listed() if self._hash[block] is not None]

    def check(self) -> None:
        """Raise AssertionError when the pool's own books disagree. O(num_blocks), for tests and idle moments."""
        listed = list(self._listed())
        assert len(listed) == len(set(listed)) == self.available, "the list holds each ownerless block once"
        assert all(self.refs[block] == 0 for block in listed), "a listed block has an owner"
        owned = sum(1 for refs in self.refs if refs > 0)
        assert owned + self.available == self.num_blocks, "every block is owned or listed"
        assert self.refs[0] == 0, "the null block has no owner"
        content = [self._hash[block] is not None for block in listed]
        assert sum(content) == self.cached, "the cached count is right"
        assert content == sorted(content), "free blocks stand before cached ones"
        assert all(self._hash[block] == name for name, block in self._index.items()), "the index is exact"
        assert len(self._index) == sum(name is not None for name in self._hash), "every content is indexed once"

    def _evict(self, block: int) -> None:
        name = self._hash[block]
        assert name is not None
        del self._index[name]
        self._hash[block] = None
        self._tokens[block] = ()
        self.cached -= 1
        self._events.add("evict", block)

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before

    def _link(self, before: int, blocks: Iterable[int]) -> None:
        """Put the blocks, in this order, behind `before`."""
        behind, back = self._next, self._prev
        after = behind[before]
        for block in blocks:
            behind[before], back[block] = block, before
            before = block
        behind[before], back[after] = after, before

    def _listed(self) -> list[int]:
        blocks, block = [], self._next[0]
        while block:
            blocks.append(block)
            block = self._next[block]
        return blocks
