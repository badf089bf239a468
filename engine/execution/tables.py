"""Block tables on a runner's side of the seam, kept up to date by the patches of its steps."""

from __future__ import annotations

from engine.execution.step_input import UNKNOWN, StepInput


class InconsistentStep(RuntimeError):
    """A step that would read or write memory that is not its sequences' own. Always a bug of the scheduler."""


class TableRows:
    """The block table in each row, as far as steps have told."""

    def __init__(self) -> None:
        self._tables: dict[int, list[int]] = {}

    def apply(self, step: StepInput) -> None:
        """Take in the patches of a step."""
        for row, index, block in step.patches.tolist():
            table = self._tables.setdefault(row, [])
            if index == 0:
                table.clear()
            del table[index + 1 :]
            if index == len(table):
                table.append(block)
            elif index < len(table):
                table[index] = block
            else:
                raise InconsistentStep(f"Row {row}: entry {index} of a table that has {len(table)}.")

    def tables(self, step: StepInput, block_size: int) -> list[list[int]]:
        """For each sequence of the step, the blocks of its tokens, those of the step included."""
        found = []
        for row, end in zip(step.rows.tolist(), (step.starts + step.counts).tolist(), strict=True):
            blocks = -(-end // block_size)
            table = self._tables.get(row, [])
            if len(table) < blocks:
                raise InconsistentStep(f"Row {row}: {end} tokens, with {len(table)} blocks of {block_size}.")
            found.append(table[:blocks])
        return found


def check_step(step: StepInput, tables: list[list[int]], block_size: int, num_blocks: int, vocab_size: int) -> None:
    """Raises InconsistentStep unless tables lie within the pool, tokens are the model's, and no block is written twice.

    Call before anything is written.
    """
    check_moves(step, num_blocks)
    if len(step.token_ids) != step.counts.sum():
        raise InconsistentStep(f"{len(step.token_ids)} tokens for sequences of {step.counts.tolist()}.")
    if len(step.token_ids) and not UNKNOWN <= step.token_ids.min() <= step.token_ids.max() < vocab_size:
        raise InconsistentStep(f"A token outside 0..{vocab_size - 1}.")
    if len(step.counts) and (step.counts.min() < 1 or step.starts.min() < 0):
        raise InconsistentStep("A sequence without tokens in the step.")
    written: set[int] = set()
    for table, row, start in zip(tables, step.rows.tolist(), step.starts.tolist(), strict=True):
        if min(table) < 1 or max(table) > num_blocks:
            raise InconsistentStep(f"Row {row}: a block outside 1..{num_blocks}.")
        blocks = table[start // block_size :]
        if not written.isdisjoint(blocks):
            raise InconsistentStep(f"Row {row}: writes a block that another sequence writes.")
        written.update(blocks)


def check_moves(step: StepInput, num_blocks: int) -> None:
    """Does what `check_step` does for the blocks that move before the forward."""
    if not (len(step.copies) or len(step.swap_out) or len(step.swap_in)):
        return
    touched = [*step.swap_out[:, 0].tolist(), *step.swap_in[:, 1].tolist(), *step.copies.flatten().tolist()]
    if touched and not 1 <= min(touched) <= max(touched) <= num_blocks:
        raise InconsistentStep(f"A move from or to a block outside 1..{num_blocks}.")
    destinations = [*step.copies[:, 1].tolist(), *step.swap_in[:, 1].tolist()]
    if len(set(destinations)) < len(destinations):
        raise InconsistentStep("Two moves to the same block.")
