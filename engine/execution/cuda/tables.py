"""Block tables on the device, and their mirror on the host: a step uploads what changed, not what there is."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.step_input import UNKNOWN, Ints, StepInput
from engine.execution.tables import InconsistentStep, check_moves


class DeviceTables:
    """The block table in each row, as far as steps have told; the last row is all null block, for padding.

    `host` is what `device` holds once the patches of every step applied here have been applied there.
    """

    def __init__(self, rows: int, width: int, device: str) -> None:
        self.host: NDArray[np.int32] = np.zeros((rows + 1, width), dtype=np.int32)
        self.device = torch.zeros(rows + 1, width, dtype=torch.int32, device=device)
        self.null_row = rows
        self.changes = 0
        """Counts steps that change an entry that was told before: while it and the rows of a batch stay the same, so
        does what the batch shares. Appended blocks are no such change."""
        self._known = np.zeros(rows + 1, dtype=np.int32)
        """Entries of each row."""

    def apply(self, patches: Ints) -> None:
        """Take in the patches [P, 3] of a step."""
        if not len(patches):
            return
        rows, index = patches[:, 0], patches[:, 1]
        if (index < self._known[rows]).any():
            self.changes += 1
        self.host[rows, index] = patches[:, 2]
        self._known[rows] = index + 1  # in ascending order a row: its last one stays

    def check(self, step: StepInput, block_size: int, num_blocks: int, vocab_size: int) -> None:
        """Raises InconsistentStep for what `engine.execution.tables.check_step` refuses.

        Only the blocks that the step writes are looked at: what it only reads was checked when it was written.
        """
        check_moves(step, num_blocks)
        starts, counts, ids = step.starts, step.counts, step.token_ids
        if not len(ids):
            return
        if (ids - UNKNOWN).view(np.uint32).max() >= vocab_size - UNKNOWN:  # below UNKNOWN they wrap around
            raise InconsistentStep(f"A token outside 0..{vocab_size - 1}.")
        if len(ids) == len(counts):  # one token each: decoding
            last, written = starts // block_size, None
        else:
            last = (starts + counts - 1) // block_size
            written = self._blocks(step, starts // block_size, last)
        if counts.min() < 1 or starts.min() < 0 or counts.sum() != len(ids):
            raise InconsistentStep(f"{len(ids)} tokens for sequences of {counts.tolist()}.")
        if (last >= self._known[step.rows]).any():
            raise InconsistentStep("A sequence has more tokens than blocks.")
        blocks = (self.host[step.rows, last] if written is None else written).tolist()
        if not 1 <= min(blocks) <= max(blocks) <= num_blocks:
            raise InconsistentStep(f"A block outside 1..{num_blocks}.")
        if len(set(blocks)) < len(blocks):
            raise InconsistentStep("Two sequences write one block.")

    def _blocks(self, step: StepInput, first: Ints, last: Ints) -> Ints:
        """Blocks first .. last of each sequence of the step, one after the other."""
        sizes = np.maximum(last - first + 1, 0)
        at = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        found: Ints = self.host[step.rows[at], np.clip(first[at] + within, 0, self.host.shape[1] - 1)]
        return found
