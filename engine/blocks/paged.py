"""Block tables on demand: the `paged` policy.

Gives a sequence blocks as its tokens need them, finds its prefix among the blocks already filled,
lets forks share blocks and copies the one about to be written (copy-on-write), and moves a
preempted sequence's KV to host memory and back.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from engine.blocks.observe.events import EventLog
from engine.blocks.tables import BlockTables, Match, Moves
from engine.protocol import EventKind
from engine.requests.sequence import Sequence, common_prefix
from engine.scheduling.step import ScheduledTokens


class PagedBlocks(BlockTables):
    """The block tables over one pool, and the host slots beside it."""

    shares = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool = True,
        host_slots: int = 0,
        events: EventLog | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, events)
        self._prefix_cache = prefix_cache
        self._host_slots = host_slots
        self._host_free = list(range(host_slots))
        self._host_leaving: list[int] = []
        """The slots given up since the last step was planned, which that step may still write or read."""
        self._host_left: list[int] = []
        """The slots given up for the step under way, which are free behind it."""
        self._moves = Moves([], [], [])
        self._late: list[ScheduledTokens] = []
        """The spans that fill a block with a token that is not known yet."""

    # -- admission -----------------------------------------------------------------------------

    def fits(self, sequence: Sequence, headroom: int) -> Match | None:
        match = self.match(sequence)
        needed = self.blocks_needed(sequence) - len(match.blocks) + match.cost
        return match if needed + headroom <= self.pool.available else None

    def blocks_needed(self, sequence: Sequence) -> int:
        """Counts the blocks for all tokens of a waiting sequence, and for what its children do not share with it."""
        needed = self.blocks_for(max(len(sequence.tokens), sequence.swapped_tokens))
        for child in sequence.children:
            shared = common_prefix(sequence.tokens, child.tokens) // self.block_size
            needed += self.blocks_for(len(child.tokens)) - shared
        return needed

    def match(self, sequence: Sequence) -> Match:
        """Finds the cached prefix, in whole blocks, without what must be computed for its logits."""
        blocks: list[int] = []
        if self._prefix_cache:
            for index in range(sequence.reusable // self.block_size):
                tokens = self._tokens(sequence, index)
                block = self.pool.find(self._chain_hash(sequence, index, tokens), tokens)
                if block is None:
                    break
                blocks.append(block)
        return Match(blocks, sum(self.pool.refs[block] == 0 for block in blocks))

    def admit(self, sequence: Sequence, match: Match) -> None:
        """Start the table with the cached prefix; behind it comes what waits in host memory, if anything does."""
        assert not sequence.table, "admitted with blocks"
        for block in match.blocks:
            revived = self.pool.acquire(block)
            kind: EventKind = "hit" if revived else "share"
            self.events.add(kind, block, sequence.id, sequence.session, len(sequence.table))
            sequence.table.append(block)
        sequence.computed = len(sequence.table) * self.block_size
        if sequence.swapped:
            self._swap_in(sequence)
        self._track(sequence)

    def adopt(self, resident: Sequence, sequence: Sequence, tokens: int) -> None:
        """Give `sequence` the identity and blocks of `resident`, cut to its first `tokens` tokens."""
        self._pop_blocks(resident, self.blocks_for(tokens))
        sequence.id, sequence.table, resident.table = resident.id, resident.table, []
        sequence.sent = resident.sent
        sequence.hashes = resident.hashes[: tokens // self.block_size]
        sequence.computed = tokens
        sequence.room = 0
        self._track(sequence)

    # -- growth --------------------------------------------------------------------------------

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for `tokens` more tokens and count them as computed. False, and nothing changed, without memory.

        ```
        table    | full | full | half |                 computed = 40, block size 16
        grow 20  | full | full | full | full | (4) |    two blocks allocated; `half` copied first if shared
        ```
        """
        end = sequence.computed + tokens
        missing = max(0, -(-end // self.block_size) - len(sequence.table))
        copied = self._must_copy(sequence)
        if missing or copied:
            if missing + copied > self.pool.available:
                return False
            if copied:
                self._copy_on_write(sequence, sequence.computed // self.block_size)
            self._append_blocks(sequence, missing)
        sequence.computed = end
        sequence.room = len(sequence.table) * self.block_size
        self._changed[sequence.id] = sequence
        return True

    def publish(self, sequence: Sequence, start: int) -> None:
        """Make the blocks that tokens `start .. computed-1` filled addressable.

        Called once a step is certain to run, before it does: each layer writes the KV of the whole
        batch before it attends, so a later sequence of the same step may already share them.
        """
        first, end = start // self.block_size, sequence.computed // self.block_size
        if first < end and self._prefix_cache:
            for index in range(first, end):
                tokens = self._tokens(sequence, index)
                self.pool.register(sequence.table[index], self._chain_hash(sequence, index, tokens), tokens)

    def publish_spans(self, spans: Iterable[ScheduledTokens]) -> None:
        size = self.block_size
        if self._prefix_cache:
            for span in [span for span in spans if span.start % size + span.count >= size]:  # which fill a block
                if span.start + span.count > span.sequence.known:
                    self._late.append(span)
                else:
                    self.publish(span.sequence, span.start)

    def publish_late(self) -> None:
        late, self._late = self._late, []
        for span in late:
            if not span.sequence.ended:
                self.publish(span.sequence, span.start)

    def take_moves(self) -> Moves:
        moves, self._moves = self._moves, Moves([], [], [])
        self._host_free.extend(self._host_left)
        self._host_left, self._host_leaving = self._host_leaving, []
        return moves

    @property
    def moves_pending(self) -> bool:
        return bool(self._moves.swap_out or self._moves.copies or self._moves.swap_in)

    # -- sharing and giving back ---------------------------------------------------------------

    def fork(self, parent: Sequence, child: Sequence, tokens: int) -> None:
        """Let the child share the parent's blocks that hold its first `tokens` tokens, a half-filled last one too."""
        assert not child.table, "forked into a sequence with blocks"
        for index in range(self.blocks_for(tokens)):
            block = parent.table[index]
            self.pool.acquire(block)
            self.events.add("share", block, child.id, child.session, index)
            child.table.append(block)
        child.hashes = parent.hashes[: tokens // self.block_size]
        child.computed = tokens
        parent.room = child.room = 0
        self._track(child)

    def release(self, sequence: Sequence) -> None:
        if self._moves.copies:
            owned = set(sequence.table)
            self._moves.copies[:] = [copy for copy in self._moves.copies if copy[1] not in owned]
        self.drop_swapped(sequence)
        super().release(sequence)

    # -- host memory ---------------------------------------------------------------------------

    def can_swap_out(self, sequence: Sequence) -> bool:
        return len(sequence.table) <= len(self._host_free)

    def swap_out(self, sequence: Sequence) -> None:
        """Move the sequence's KV to host slots and give its blocks back. All of `computed` must be in the blocks
        before the next step: nothing of it may belong to a step that is still being planned."""
        tokens = sequence.computed
        self._pop_blocks(sequence, self.blocks_for(tokens))
        slots = [self._host_free.pop() for _ in sequence.table]
        # The content of a block that is about to be copied into still lies in the source of the copy.
        pending = {destination: source for source, destination in self._moves.copies}
        sources = [pending.get(block, block) for block in sequence.table]
        self._moves.swap_out.extend(zip(sources, slots, strict=True))
        self.events.add("swap_out", -1, sequence.id, sequence.session)
        self.release(sequence)
        sequence.swapped, sequence.swapped_tokens = slots, tokens

    def drop_swapped(self, sequence: Sequence) -> None:
        """Forget what the sequence has in host memory, and what was still to be moved there."""
        if sequence.swapped and self._moves.swap_out:
            slots = set(sequence.swapped)
            self._moves.swap_out[:] = [move for move in self._moves.swap_out if move[1] not in slots]
        self._leave_slots(sequence)

    def _leave_slots(self, sequence: Sequence) -> None:
        self._host_leaving.extend(sequence.swapped)
        sequence.swapped, sequence.swapped_tokens = [], 0

    @property
    def host_used(self) -> int:
        return self._host_slots - len(self._host_free) - len(self._host_leaving) - len(self._host_left)

    def _swap_in(self, sequence: Sequence) -> None:
        there = len(sequence.table)
        slots = sequence.swapped[there:]
        self._append_blocks(sequence, len(slots))
        self._moves.swap_in.extend(zip(slots, sequence.table[there:], strict=True))
        start, sequence.computed = sequence.computed, max(sequence.computed, sequence.swapped_tokens)
        self._leave_slots(sequence)  # the moves out of and into them are for the next forward
        self.events.add("swap_in", -1, sequence.id, sequence.session)
        self.publish(sequence, start)

    # -- inside --------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        slots = [*self._host_free, *self._host_leaving, *self._host_left]
        assert len(slots) == len(set(slots)), "a host slot is given back once"
        sources = [block for block, _ in self._moves.swap_out]
        assert all(0 < block <= self.pool.num_blocks for block in sources), "only blocks are swapped out"

    def _check_table(self, sequence: Sequence) -> None:
        needed = self.blocks_for(sequence.computed)
        assert len(sequence.table) == needed, "waste of a sequence is less than one block"

    def _must_copy(self, sequence: Sequence) -> bool:
        """True when the next token's slot lies in a block that others own or can find by its content."""
        index, offset = divmod(sequence.computed, self.block_size)
        if offset == 0:
            return False
        block = sequence.table[index]
        return self.pool.refs[block] > 1 or self.pool.addressable(block)

    def _copy_on_write(self, sequence: Sequence, index: int) -> None:
        source, (block,) = sequence.table[index], self.pool.take(1)
        self._moves.copies.append((source, block))
        sequence.table[index] = block
        sequence.sent = min(sequence.sent, index)
        self.events.add("copy", block, sequence.id, sequence.session, index, source)
        self.pool.release([source])

    def _tokens(self, sequence: Sequence, index: int) -> tuple[int, ...]:
        return tuple(sequence.tokens[index * self.block_size : (index + 1) * self.block_size])

    def _chain_hash(self, sequence: Sequence, index: int, tokens: tuple[int, ...]) -> bytes:
        """SHA-256 over (parent hash, tokens) of block `index`, which holds `tokens`; the salt starts the chain.

        Kept in `sequence.hashes`; blocks are asked for in order.
        """
        hashes = sequence.hashes
        if index == len(hashes):
            parent = hashes[-1] if hashes else hashlib.sha256(b"pagechat" + sequence.salt).digest()
            hashes.append(hashlib.sha256(parent + struct.pack(f"{len(tokens)}q", *tokens)).digest())
        return hashes[index]
