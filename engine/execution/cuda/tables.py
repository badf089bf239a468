"""Block tables that stay on the device: a step uploads what changed, not what there is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from engine.requests.sequence import Sequence, Span


class DeviceTables:
    """A row for each sequence that ran lately; the last row is all null block, for padding.

    `host` mirrors what the device will hold once the patches of `take_patches` have been applied there.
    """

    def __init__(self, rows: int, width: int, block_size: int, device: str) -> None:
        self.host: NDArray[np.int32] = np.zeros((rows + 1, width), dtype=np.int32)
        self.device = torch.zeros(rows + 1, width, dtype=torch.int32, device=device)
        self.null_row = rows
        self.changes = 0
        """Counts everything but appended blocks: while it and a batch stay the same, so does what the batch shares."""
        self._block_size = block_size
        self._rows: OrderedDict[int, int] = OrderedDict()  # sequence id -> row, least recently used first
        self._free = list(range(rows))
        self._ends = [-1] * rows
        self._preemptions = [0] * rows
        self._written = [0] * rows
        """The block that holds each row's newest token."""
        self._patches: list[tuple[int, int, int]] = []

    def place(self, sequence: Sequence, start: int, end: int) -> int:
        """The row of a sequence whose tokens start .. end - 1 a step computes; notes what of its table is new."""
        row = self._rows.get(sequence.id)
        if row is None:
            row = self._take(sequence.id)
        else:
            self._rows.move_to_end(sequence.id)
        table, size = sequence.table, self._block_size
        first, last = start // size, (end - 1) // size
        if self._ends[row] != start or self._preemptions[row] != sequence.preemptions:
            first = 0
            self.changes += 1
        elif start % size:  # only blocks that are written now can be other ones than before
            self.changes += table[first] != self._written[row]  # copy-on-write
        mine = self.host[row]
        for index in range(first, last + 1):
            block = table[index]
            if mine[index] != block:
                mine[index] = block
                self._patches.append((row, index, block))
        self._ends[row], self._preemptions[row], self._written[row] = end, sequence.preemptions, table[last]
        return row

    def place_newest(self, spans: Iterable[Span]) -> list[int]:
        """`place` for spans of one token each, most of which lie in the block of the token before."""
        rows, ends, size = self._rows, self._ends, self._block_size
        written, preemptions = self._written, self._preemptions
        placed = []
        for span in spans:
            sequence, start = span.sequence, span.start
            row = rows.get(sequence.id, -1)
            goes_on = row >= 0 and ends[row] == start and preemptions[row] == sequence.preemptions
            if goes_on and start % size and written[row] == sequence.table[start // size]:
                ends[row] = start + 1
                rows.move_to_end(sequence.id)
            else:
                row = self.place(sequence, start, start + 1)
            placed.append(row)
        return placed

    def row_of(self, sequence: Sequence) -> int:
        """The row of a sequence that has no tokens in this step yet: one that is born in it."""
        row = self._rows.get(sequence.id)
        return self._take(sequence.id) if row is None else row

    def forget(self, sequence: Sequence) -> None:
        """Its next step uploads its table anew."""
        row = self._rows.get(sequence.id)
        if row is not None:
            self._ends[row] = -1

    def take_patches(self) -> list[tuple[int, int, int]]:
        """(row, index, block) since the last call, each place once."""
        patches, self._patches = self._patches, []
        return patches

    def _take(self, sequence: int) -> int:
        if self._free:
            row = self._free.pop()
        else:
            _, row = self._rows.popitem(last=False)
        self._rows[sequence] = row
        self._ends[row] = -1
        return row
