"""Block tables of sequences, on demand: the `paged` policy.

Gives a sequence blocks as its tokens need them, finds its prefix among the blocks already filled,
lets forks share blocks and copies the one about to be written (copy-on-write). It changes
`Sequence.table`, `.hashes` and `.computed`, and nothing else in the engine changes a table.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass

from engine.blocks.events import EventLog
from engine.blocks.pool import BlockPool
from engine.protocol import EventKind, SequenceSnapshot, Snapshot
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix of a sequence that is in the cache."""

    blocks: list[int]
    cost: int
    """How many of them have no owner: taking the match makes that many fewer available."""


class PagedBlocks:
    """The block tables over one pool."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        self.block_size = block_size
        self.events = EventLog()
        self.pool = BlockPool(num_blocks, self.events)
        self._prefix_cache = prefix_cache
        self._sequences: dict[int, Sequence] = {}
        self._changed: dict[int, Sequence] = {}
        self._copies: list[tuple[int, int]] = []

    # -- admission -----------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> Match:
        """The cached prefix, in whole blocks; at least one token is left to compute, for its logits."""
        blocks: list[int] = []
        if self._prefix_cache:
            for index in range((len(sequence.tokens) - 1) // self.block_size):
                block = self.pool.find(self._chain_hash(sequence, index), self._tokens(sequence, index))
                if block is None:
                    break
                blocks.append(block)
        return Match(blocks, sum(self.pool.refs[block] == 0 for block in blocks))

    def admit(self, sequence: Sequence, match: Match) -> None:
        """Start the sequence's table with the blocks of the match."""
        assert not sequence.table, "admitted with blocks"
        for block in match.blocks:
            revived = self.pool.acquire(block)
            kind: EventKind = "hit" if revived else "share"
            self.events.add(kind, block, sequence.id, sequence.session, len(sequence.table))
            sequence.table.append(block)
        sequence.computed = len(match.blocks) * self.block_size
        self._sequences[sequence.id] = self._changed[sequence.id] = sequence

    # -- growth --------------------------------------------------------------------------------

    def blocks_to_grow(self, sequence: Sequence, tokens: int) -> int:
        """Blocks `grow` would take to make room for `tokens` more tokens."""
        missing = -(-(sequence.computed + tokens) // self.block_size) - len(sequence.table)
        return max(0, missing) + self._must_copy(sequence)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for `tokens` more tokens and count them as computed. False, and nothing changed, without memory.

        ```
        table    | full | full | half |                 computed = 40, block size 16
        grow 20  | full | full | full | full | (4) |    two blocks allocated; `half` copied first if shared
        ```
        """
        missing = self.blocks_to_grow(sequence, tokens)
        if missing > self.pool.available:
            return False
        if self._must_copy(sequence):
            self._copy_on_write(sequence, sequence.computed // self.block_size)
            missing -= 1
        for _ in range(missing):
            block = self.pool.take()
            self.events.add("allocate", block, sequence.id, sequence.session, len(sequence.table))
            sequence.table.append(block)
        sequence.computed += tokens
        self._changed[sequence.id] = sequence
        return True

    def publish(self, sequence: Sequence, start: int) -> None:
        """Make the blocks that tokens `start .. computed-1` filled addressable.

        Called once a step is certain to run, before it does: each layer writes the KV of the whole
        batch before it attends, so a later sequence of the same step may already share them.
        """
        if self._prefix_cache:
            for index in range(start // self.block_size, sequence.computed // self.block_size):
                self.pool.register(
                    sequence.table[index], self._chain_hash(sequence, index), self._tokens(sequence, index)
                )

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, destination) blocks to copy before the next forward, all sources read before any is written."""
        copies, self._copies = self._copies, []
        return copies

    # -- sharing and giving back ---------------------------------------------------------------

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child shares every block of the parent, the half-filled last one too."""
        assert not child.table, "forked into a sequence with blocks"
        for index, block in enumerate(parent.table):
            self.pool.acquire(block)
            self.events.add("share", block, child.id, child.session, index)
        child.table = list(parent.table)
        child.hashes = list(parent.hashes)
        child.computed = parent.computed
        self._sequences[child.id] = self._changed[child.id] = child

    def release(self, sequence: Sequence) -> None:
        """Give up all blocks, last first, so that the tail of a cached sequence is evicted before its head."""
        if self._copies:
            owned = set(sequence.table)
            self._copies = [copy for copy in self._copies if copy[1] not in owned]
        while sequence.table:
            block = sequence.table.pop()
            self.pool.release(block)
            self.events.add("release", block, sequence.id, sequence.session, len(sequence.table))
        sequence.computed = 0
        self._sequences.pop(sequence.id, None)
        self._changed.pop(sequence.id, None)

    # -- reporting -----------------------------------------------------------------------------

    def take_lengths(self) -> list[tuple[int, int]]:
        """(sequence, tokens in its blocks) of the sequences that changed since the last call."""
        changed, self._changed = self._changed, {}
        return [(sequence.id, sequence.computed) for sequence in changed.values()]

    def snapshot(self, *, ticket: int, step: int, running: int, waiting: int, preemptions: int) -> Snapshot:
        """The whole state, for a `PoolMirror`."""
        sequences = [
            SequenceSnapshot(seq=s.id, session=s.session, blocks=list(s.table), length=s.computed)
            for s in self._sequences.values()
        ]
        owned = {block for sequence in sequences for block in sequence.blocks}
        return Snapshot(
            ticket=ticket,
            next_event=self.events.next_event,
            step=step,
            num_blocks=self.pool.num_blocks,
            block_size=self.block_size,
            sequences=sequences,
            cached=self.pool.cached_blocks(),
            addressable=sorted(block for block in owned if self.pool.addressable(block)),
            running=running,
            waiting=waiting,
            preemptions=preemptions,
        )

    def check(self) -> None:
        """Raise AssertionError when an invariant of design.md, section 4, does not hold. For tests and idle moments."""
        self.pool.check()
        entries: dict[int, int] = {}
        for sequence in self._sequences.values():
            needed = -(-sequence.computed // self.block_size)
            assert len(sequence.table) == needed, "waste of a sequence is less than one block"
            for block in sequence.table:
                entries[block] = entries.get(block, 0) + 1
        for block in range(1, self.pool.num_blocks + 1):
            assert self.pool.refs[block] == entries.get(block, 0), "references equal table entries"

    # -- inside --------------------------------------------------------------------------------

    def _must_copy(self, sequence: Sequence) -> bool:
        """True when the next token's slot lies in a block that others own or can find by its content."""
        index, offset = divmod(sequence.computed, self.block_size)
        if offset == 0:
            return False
        block = sequence.table[index]
        return self.pool.refs[block] > 1 or self.pool.addressable(block)

    def _copy_on_write(self, sequence: Sequence, index: int) -> None:
        source, block = sequence.table[index], self.pool.take()
        self._copies.append((source, block))
        sequence.table[index] = block
        self.events.add("copy", block, sequence.id, sequence.session, index, source)
        self.pool.release(source)

    def _tokens(self, sequence: Sequence, index: int) -> tuple[int, ...]:
        return tuple(sequence.tokens[index * self.block_size : (index + 1) * self.block_size])

    def _chain_hash(self, sequence: Sequence, index: int) -> bytes:
        """SHA-256 over (parent hash, tokens); the salt starts the chain. Extends `sequence.hashes` as needed."""
        hashes = sequence.hashes
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else hashlib.sha256(b"pagechat" + sequence.salt).digest()
            tokens = array("q", self._tokens(sequence, len(hashes)))
            hashes.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return hashes[index]
