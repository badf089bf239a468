"""The pool's state rebuilt away from the pool: one reducer from a snapshot and the event log.

The front's `status`, the app's map, recordings and tests all read a `PoolMirror`; none keeps books
of its own. A property test holds mirror == pool after any history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.protocol import PoolEvent, PoolStatus, Snapshot, StepReport

BlockState = Literal["free", "cached", "active", "shared"]


class MirrorGap(RuntimeError):
    """A report does not follow what the mirror has seen: ask for a snapshot and start again."""


@dataclass(slots=True)
class Table:
    """A sequence's block table and the tokens its blocks hold."""

    seq: int
    session: str
    blocks: list[int]
    length: int


class PoolMirror:
    """State of a pool after report number `step`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.step = -1
        self.next_event = 0
        self.running = self.waiting = self.preemptions = 0
        self.tables: dict[int, Table] = {}
        self.refs = [0] * (num_blocks + 1)
        self._owned = bytearray(num_blocks + 1)
        """1 for each block with an owner, for `largest_free_run`; and for block 0, which is nobody's to take."""
        self._owned[0] = 1
        self.cached: dict[int, None] = {}
        """Blocks with content and no owner, next victim first."""
        self._addressable: set[int] = set()
        self._owners: dict[int, dict[int, int]] = {}
        self._fill = [0] * (num_blocks + 1)
        self._slots_used = 0
        self._shared = 0
        self._entries = 0
        self._changed: set[int] = set()

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> PoolMirror:
        mirror = cls(snapshot.num_blocks, snapshot.block_size)
        mirror.step, mirror.next_event = snapshot.step, snapshot.next_event
        mirror.running, mirror.waiting = snapshot.running, snapshot.waiting
        mirror.preemptions = snapshot.preemptions
        mirror._addressable = {*snapshot.cached, *snapshot.addressable}
        for block in mirror._addressable:
            mirror._fill[block] = snapshot.block_size
        mirror.cached = dict.fromkeys(snapshot.cached)
        for sequence in snapshot.sequences:
            table = mirror._table(sequence.seq, sequence.session)
            for index, block in enumerate(sequence.blocks):
                mirror._own(table, block, index)
            mirror._set_length(table, sequence.length)
        mirror._changed = set(range(1, snapshot.num_blocks + 1))
        return mirror

    def apply(self, report: StepReport) -> None:
        """Advance by one report. One the snapshot already held is skipped; raises MirrorGap when one is missing."""
        if report.step <= self.step and report.first_event + len(report.events) <= self.next_event:
            return
        if report.step != self.step + 1 or report.first_event != self.next_event:
            raise MirrorGap(f"report {report.step} does not follow report {self.step}")
        for event in report.events:
            self._apply_event(event)
        for seq, length in report.lengths:
            self._set_length(self.tables[seq], length)
        self.step = report.step
        self.next_event += len(report.events)
        self.running, self.waiting = report.running, report.waiting
        self.preemptions = report.preemptions

    def state(self, block: int) -> BlockState:
        refs = self.refs[block]
        if refs == 0:
            return "cached" if block in self.cached else "free"
        return "active" if refs == 1 else "shared"

    def owners(self, block: int) -> list[tuple[int, int]]:
        """(sequence, logical index) of each table entry that is this block."""
        return list(self._owners.get(block, {}).items())

    def first_owner(self, block: int) -> int:
        """The sequence that has owned the block longest; KeyError for a block without owner."""
        return next(iter(self._owners[block]))

    def fill(self, block: int) -> int:
        """Tokens the block holds; 0 for a free block."""
        return self._fill[block]

    def addressable(self, block: int) -> bool:
        """True when the block's content can be found by hash."""
        return block in self._addressable

    @property
    def owned_blocks(self) -> int:
        """Active and shared blocks."""
        return len(self._owners)

    @property
    def slots_used(self) -> int:
        """Slots of owned blocks that hold a token, a shared block's counted once."""
        return self._slots_used

    def status(self) -> PoolStatus:
        """The totals. A millisecond for 65,536 blocks, for the longest run."""
        owned = len(self._owners)
        return PoolStatus(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            free=self.num_blocks - owned - len(self.cached),
            cached=len(self.cached),
            active=owned - self._shared,
            shared=self._shared,
            slots_used=self._slots_used,
            internal_waste=owned * self.block_size - self._slots_used,
            largest_free_run=self._largest_free_run(),
            saved=self._entries - owned,
        )

    def take_changed(self) -> set[int]:
        """Blocks whose state, owners or fill changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _largest_free_run(self) -> int:
        shortest, too_long = 0, self.num_blocks + 1
        while too_long - shortest > 1:  # searching for bytes is so quick that halving beats any walk
            length = (shortest + too_long) // 2
            if self._owned.find(bytes(length)) >= 0:
                shortest = length
            else:
                too_long = length
        return shortest

    def _apply_event(self, event: PoolEvent) -> None:
        kind, block = event.kind, event.block
        if kind in ("allocate", "share", "hit"):
            if kind == "allocate":
                self._fill[block] = 0
            self._own(self._table(event.seq, event.session), block, event.index)
        elif kind == "copy":
            table = self.tables[event.seq]
            self._fill[block] = self._fill[event.source]
            self._disown(table, event.source)
            self._own(table, block, event.index)
        elif kind == "release":
            table = self.tables[event.seq]
            table.blocks.pop()
            table.length = min(table.length, len(table.blocks) * self.block_size)
            self._disown(table, block)
            if not table.blocks:
                del self.tables[event.seq]
        elif kind == "cache":
            self._addressable.add(block)
            self._write_fill(block, self.block_size)
        elif kind == "evict":
            self._addressable.discard(block)
            del self.cached[block]
            self._fill[block] = 0
        if block >= 0:
            self._changed.add(block)

    def _table(self, seq: int, session: str) -> Table:
        return self.tables.setdefault(seq, Table(seq, session, [], 0))

    def _own(self, table: Table, block: int, index: int) -> None:
        if index == len(table.blocks):
            table.blocks.append(block)
        else:
            table.blocks[index] = block
        if self.refs[block] == 0:
            self.cached.pop(block, None)
            self._slots_used += self._fill[block]
        self._count(block, +1)
        self._owners.setdefault(block, {})[table.seq] = index

    def _disown(self, table: Table, block: int) -> None:
        owners = self._owners[block]
        del owners[table.seq]
        self._count(block, -1)
        if owners:
            if block not in self._addressable:  # the one that left may have had more tokens in it than those who stay
                lengths = ((self.tables[seq].length, index) for seq, index in owners.items())
                self._write_fill(block, max(self._in_block(length, index) for length, index in lengths))
        else:
            del self._owners[block]
            self._slots_used -= self._fill[block]
            if block in self._addressable:
                self.cached[block] = None
            else:
                self._fill[block] = 0
        self._changed.add(block)

    def _count(self, block: int, change: int) -> None:
        before, after = self.refs[block], self.refs[block] + change
        self.refs[block] = after
        self._owned[block] = after > 0
        self._shared += (after > 1) - (before > 1)
        self._entries += change

    def _set_length(self, table: Table, length: int) -> None:
        for index in range(min(table.length, length) // self.block_size, len(table.blocks)):
            self._set_fill(table.blocks[index], self._in_block(length, index))
        table.length = length

    def _in_block(self, length: int, index: int) -> int:
        """Tokens that a sequence of `length` tokens has in its logical block `index`."""
        return min(self.block_size, max(0, length - index * self.block_size))

    def _set_fill(self, block: int, fill: int) -> None:
        if block in self._addressable:
            fill = self.block_size
        elif self.refs[block] > 1:  # nobody writes to a shared block: it holds what the longest of its owners wrote
            fill = max(fill, self._fill[block])
        self._write_fill(block, fill)

    def _write_fill(self, block: int, fill: int) -> None:
        if self.refs[block]:
            self._slots_used += fill - self._fill[block]
        self._fill[block] = fill
        self._changed.add(block)
