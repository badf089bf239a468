"""Block tables over one pool: what every allocation policy shares.

A policy decides which blocks a sequence gets and when; giving them back, reporting and checking are
the same for all. Nothing else in the engine changes a `Sequence.table` or `.computed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.blocks.observe.events import EventLog
from engine.blocks.pool import BlockPool
from engine.protocol import SequenceSnapshot, Snapshot
from engine.requests.sequence import Sequence
from engine.scheduling.step import ScheduledTokens


@dataclass(frozen=True, slots=True)
class Match:
    """What a sequence would start with if it were admitted now."""

    blocks: list[int] = field(default_factory=list)
    """The cached prefix (paged), or the hole it would be put in (contiguous)."""
    cost: int = 0
    """So many blocks fewer are available once the match is taken."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What KV has to be moved before the next forward; see `ScheduledStep`."""

    swap_out: list[tuple[int, int]]
    copies: list[tuple[int, int]]
    swap_in: list[tuple[int, int]]


class BlockTables:
    """The sequences with blocks, and the pool they come from."""

    shares = False
    """True when sequences may share blocks, so that forks, sessions and the prefix cache work."""

    def __init__(self, num_blocks: int, block_size: int, events: EventLog | None = None) -> None:
        self.block_size = block_size
        self.events = events or EventLog()
        self.pool = BlockPool(num_blocks, self.events)
        self._sequences: dict[int, Sequence] = {}
        self._changed: dict[int, Sequence] = {}

    # -- what a policy answers -----------------------------------------------------------------

    def fits(self, sequence: Sequence, headroom: int) -> Match | None:
        """Tells how to admit the whole sequence and leave `headroom` blocks available; None when it does not fit."""
        raise NotImplementedError

    def admit(self, sequence: Sequence, match: Match) -> None:
        """Give the sequence the blocks of the match."""
        raise NotImplementedError

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for `tokens` more tokens and count them as computed. False, and nothing changed, without memory."""
        raise NotImplementedError

    def publish(self, sequence: Sequence, start: int) -> None:
        """Make the blocks that tokens `start .. computed-1` filled addressable."""

    def publish_spans(self, spans: Iterable[ScheduledTokens]) -> None:
        """Call `publish` for all spans of a step; those whose last token is not known yet wait for `publish_late`."""

    def publish_late(self) -> None:
        """Call `publish` for what waited, now that its tokens are known."""

    def take_moves(self) -> Moves:
        """Returns what KV has to be moved before the next forward; the next call does not return it again."""
        return Moves([], [], [])

    @property
    def moves_pending(self) -> bool:
        """Whether the next forward has KV to move first. Until it has, nobody else may read or write blocks: what was
        swapped out still lies in blocks that others may have been given since."""
        return False

    @property
    def host_used(self) -> int:
        """The number of host slots that hold a preempted sequence's KV."""
        return 0

    def fork(self, parent: Sequence, child: Sequence, tokens: int) -> None:
        """Share the blocks of the parent's first `tokens` tokens with the child. Only where `shares`."""
        raise NotImplementedError

    # -- what all share ------------------------------------------------------------------------

    def decode_in_place(self, running: list[Sequence]) -> tuple[dict[int, ScheduledTokens], list[Sequence]]:
        """What most sequences need in most steps, without a call for each: one more token in a block they have.

        Counts the newest token as computed where it is the only one missing and there is room. Returns the spans by
        sequence id, and the other sequences, which `grow` serves. Beams are always among these.
        """
        changed = self._changed
        spans: dict[int, ScheduledTokens] = {}
        others: list[Sequence] = []
        for sequence in running:
            start = sequence.computed
            if start < sequence.room and len(sequence.tokens) - start == 1 and sequence.group is None:
                sequence.computed = start + 1
                changed[sequence.id] = sequence
                spans[sequence.id] = ScheduledTokens(sequence, start, 1)
            else:
                others.append(sequence)
        return spans, others

    def release(self, sequence: Sequence) -> None:
        """Give up all blocks, last first, so that the tail of a cached sequence is evicted before its head."""
        self._pop_blocks(sequence, 0)
        sequence.computed = sequence.room = 0
        self._sequences.pop(sequence.id, None)
        self._changed.pop(sequence.id, None)

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that hold blocks."""
        return list(self._sequences.values())

    @property
    def has_new_lengths(self) -> bool:
        """Whether `take_lengths` has something to tell."""
        return bool(self._changed)

    def take_lengths(self) -> list[tuple[int, int]]:
        """Returns (sequence, tokens in its blocks) of the sequences that changed since the last call."""
        changed, self._changed = self._changed, {}
        return [(sequence.id, sequence.computed) for sequence in changed.values()]

    def snapshot(self, *, ticket: int, step: int, running: int, waiting: int, preemptions: int) -> Snapshot:
        """Returns the whole state, for a `PoolMirror`."""
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
            self._check_table(sequence)
            if sequence.computed < sequence.room:
                block = sequence.table[sequence.computed // self.block_size]
                assert self.pool.refs[block] == 1, "room is in blocks with one owner"
                assert not self.pool.addressable(block), "room is in blocks that are not full"
            for block in sequence.table:
                entries[block] = entries.get(block, 0) + 1
        for block in range(1, self.pool.num_blocks + 1):
            assert self.pool.refs[block] == entries.get(block, 0), "references equal table entries"

    def blocks_for(self, tokens: int) -> int:
        """Counts the blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def _check_table(self, sequence: Sequence) -> None:
        raise NotImplementedError

    def _track(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = self._changed[sequence.id] = sequence

    def _append_blocks(self, sequence: Sequence, count: int) -> None:
        blocks = self.pool.take(count)
        self.events.add_blocks("allocate", blocks, sequence.id, sequence.session, len(sequence.table))
        sequence.table += blocks

    def _pop_blocks(self, sequence: Sequence, keep: int) -> None:
        blocks = sequence.table[keep:]
        if blocks:
            del sequence.table[keep:]
            sequence.sent = min(sequence.sent, keep)
            self.pool.release(reversed(blocks))
            self.events.add_blocks("release", blocks, sequence.id, sequence.session, keep)
