"""Which blocks of a step are in several tables: found from the tables alone, for any tree of sharing.

Sequences that share do so from their first block on (a prefix), so tables sorted as strings lie in the order of that
tree: each node's sequences are neighbours, and what neighbours have in common is all there is to know.

```
tables, sorted     common with the next     nodes
3 4 9              2                        [3 4] read by both ----+
3 4 7 8            1                        [3]   read by three ---+ only where it pays
3 5                0
6 2
```
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORTH_READING_ONCE = 1024
"""Keys that must be saved, over all sequences of a node, for it to be read apart from what each has to itself."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sequences in an order in which those that share are neighbours, and what they share."""

    order: NDArray[np.intp]
    """Places of the given sequences."""
    nodes: list[tuple[int, int, int, int]]
    """(first place in `order`, sequences, first key, key after the last)."""
    own: NDArray[np.int32]
    """By place in `order`: the first key that no node covers."""
    saved: int
    """Keys that need not be read again."""


def find_sharing(
    tables: NDArray[np.int32], rows: NDArray[np.int32], full_blocks: NDArray[np.int32], block_size: int
) -> Sharing:
    """Of the sequences at `rows` of `tables` [.., blocks], each with so many blocks that hold nothing but its past."""
    count = len(rows)
    nothing = Sharing(np.arange(count), [], np.zeros(count, dtype=np.int32), 0)
    if count < 2 or not full_blocks.any():
        return nothing
    first = np.where(full_blocks > 0, tables[rows, 0], -np.arange(1, count + 1))
    heads, sizes = np.unique(first, return_counts=True)
    if sizes.max() == 1:
        return nothing
    shared = np.isin(first, heads[sizes > 1])
    members = np.flatnonzero(shared)
    width = int(full_blocks[members].max())
    cut = np.where(np.arange(width) < full_blocks[members, None], tables[rows[members], :width], 0)
    keys = [row.tobytes() for row in cut.astype(">i4")]
    by_key = sorted(range(len(members)), key=keys.__getitem__)
    cut = cut[by_key]
    differs = (cut[1:] != cut[:-1]) | (cut[1:] == 0)
    common = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
    order = np.concatenate((members[by_key], np.flatnonzero(~shared)))
    own = np.zeros(count, dtype=np.int32)
    nodes: list[tuple[int, int, int, int]] = []
    saved = 0
    open_nodes = [(0, len(members), 0)]  # (first, end, blocks already covered)
    while open_nodes:
        begin, end, covered = open_nodes.pop()
        if end - begin < 2:
            continue
        least = int(common[begin : end - 1].min())
        gain = (end - begin - 1) * (least - covered) * block_size
        if gain >= WORTH_READING_ONCE:
            nodes.append((begin, end - begin, covered * block_size, least * block_size))
            own[begin:end] = least * block_size
            saved += gain
            covered = least
        borders = [begin, *(begin + 1 + np.flatnonzero(common[begin : end - 1] == least)), end]
        open_nodes += [(int(a), int(b), covered) for a, b in itertools.pairwise(borders)]
    return Sharing(order, nodes, own, saved)
