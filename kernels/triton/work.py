"""What the attention kernel does in a step: items made from runs of keys, evenly cut, and what must be merged.

Plain numpy on the host; made once a step and used by all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

_LEAST_ROWS = 16
"""What the tensor cores take at least."""
WIDE_ROWS = 128
"""Rows of the product for items with many queries: prefill, and blocks that many sequences share. As many query heads
may share a key/value head at most."""
_PREFILL_ROOM, _SHARED_ROOM = 2, 4
"""Programs of the narrow kernel that take as much room on a multiprocessor as one of the wide one, which has other
settings for prefill than for blocks that decoding sequences share."""
LEAST_KEYS = 64
"""Fewest keys of a piece."""
_START_COST = 90
"""What starting an item costs, in keys."""
_MERGE_COST = 90
"""What the merge costs a step that needs one, in keys."""


def narrow_rows(group: int) -> int:
    """Rows of the product for items with few queries, of `group` heads each: one query at least always fits."""
    return max(_LEAST_ROWS, 1 << (group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Runs:
    """Queries and the keys they read, before any cutting: parallel arrays, one entry a run."""

    first: Ints
    """The first query, as an index into the step's tokens."""
    queries: Ints
    row: Ints
    """Of the block tables."""
    start: Ints
    stop: Ints
    causal: NDArray[np.bool_]
    """The queries are neighbours in one sequence and the last of them sees the key before `stop`."""

    @staticmethod
    def of(runs: list[tuple[int, int, int, int, int, bool]]) -> Runs:
        columns = np.array(runs, dtype=np.int32).reshape(-1, 6).T
        first, queries, row, start, stop, causal = columns
        return Runs(first, queries, row, start, stop, causal.astype(bool))

    def joined(self, other: Runs) -> Runs:
        """Both, these first."""
        return Runs(*(np.concatenate((getattr(self, n), getattr(other, n))) for n in Runs.__slots__))


@dataclass(frozen=True, slots=True)
class Work:
    """Items for the narrow and the wide kernel, and the merges; layouts as kernels/triton/attention.py names them."""

    narrow: Ints
    wide: Ints
    merges: Ints
    entries: Ints
    parts: int
    """Places for parts that the items write."""


def plan_work(runs: Runs, tokens: int, *, group: int, kv_heads: int, programs: int) -> Work:
    """Cut runs so that `programs` programs at a time (of the wide kernel, which takes more room, fewer) are done as
    early as can be; longest items first. Wide runs are cut only where there are too few.

    `group` query heads share a key/value head, WIDE_ROWS at most. A run of one query is narrow.
    Every query of 0 .. tokens - 1 is in at least one run or in none at all (padding); its runs' keys do not overlap.
    """
    is_wide = runs.queries * group > narrow_rows(group)
    at_once = max(1, programs // kv_heads)
    narrow = _cut(_select(runs, ~is_wide), at_once)
    tiles = _tile(_select(runs, is_wide), WIDE_ROWS // group)
    few = max(1, at_once // (_PREFILL_ROOM if runs.causal.any() else _SHARED_ROOM))
    wide = _cut(tiles, few if len(tiles.first) < few else 0)
    items = np.concatenate((narrow, wide))
    first, queries = items[:, 0], items[:, 1]

    change = np.zeros(tokens + 1, dtype=np.int32)
    np.add.at(change, first, 1)
    np.add.at(change, first + queries, -1)
    split = np.concatenate(([0], np.cumsum(np.cumsum(change[:-1]) > 1)))
    in_parts = split[first + queries] > split[first]

    places = np.where(in_parts, queries, 0)
    items[:, 5] = np.where(in_parts, np.cumsum(places) - places, -1)
    parts = int(places.sum())
    merges, entries = _merges(first[in_parts], queries[in_parts], parts)
    return Work(items[: len(narrow)], items[len(narrow) :], merges, entries, parts)


def _select(runs: Runs, where: NDArray[np.bool_]) -> Runs:
    return Runs(*(getattr(runs, name)[where] for name in Runs.__slots__))


def _within(counts: Ints) -> Ints:
    """0 .. count - 1 for each count, one after the other."""
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)


def _tile(runs: Runs, most: int) -> Runs:
    """Runs of at most `most` queries; a causal one ends with what its last query sees."""
    if not len(runs.first):
        return runs
    tiles = -(-runs.queries // most)
    at = np.repeat(np.arange(len(tiles)), tiles)
    before = _within(tiles) * most
    queries = np.minimum(most, runs.queries[at] - before)
    behind = runs.queries[at] - before - queries
    stop = runs.stop[at] - np.where(runs.causal[at], behind, 0)
    return Runs(runs.first[at] + before, queries, runs.row[at], runs.start[at], stop, runs.causal[at])


def _cut(runs: Runs, at_once: int) -> Ints:
    """Items [n, ITEM_FIELDS], longest first, part not set; long runs become several, unless `at_once` is 0."""
    length = runs.stop - runs.start
    pieces, size = _pieces(length, at_once) if at_once else (np.ones_like(length), length)
    at = np.repeat(np.arange(len(pieces)), pieces)
    start = runs.start[at] + _within(pieces) * size[at]
    stop = np.minimum(start + size[at], runs.stop[at])
    items = np.stack((runs.first[at], runs.queries[at], runs.row[at], start, stop, np.full_like(start, -1)), axis=1)
    return items[np.argsort(start - stop, kind="stable")].astype(np.int32)


def _pieces(length: Ints, at_once: int) -> tuple[Ints, Ints]:
    """Into how many pieces, of which size, to cut each run, when `at_once` items are read at a time.

    Longest first, the items of a round take as long as its first. A cut makes rounds shorter, and more of them.
    """
    if not len(length):
        return length, length
    best: tuple[float, Ints, Ints] = (np.inf, np.ones_like(length), length)
    longest, total = int(length.max()), int(length.sum(dtype=np.int64))
    shares = {-(-longest // n) for n in (1, 2, 3, 4, 6, 8)} | {-(-total // (at_once * n)) for n in (1, 2, 3, 4, 6)}
    for share in sorted({max(LEAST_KEYS, share) for share in shares}, reverse=True):
        pieces = -(-length // share)
        size = -(-length // pieces)
        size += -size % 64  # whole tiles but for the last piece
        pieces = -(-length // size)
        if int(pieces.sum()) > len(length) + 2 * at_once:  # keeps what a CUDA graph must have room for small
            continue
        rounds = np.sort(np.repeat(size, pieces))[::-1][::at_once]
        cost = float(rounds.sum()) + _START_COST * len(rounds) + _MERGE_COST * bool((pieces > 1).any())
        if cost < best[0]:
            best = cost, pieces, size
    return best[1], best[2]


def _merges(first: Ints, queries: Ints, parts: int) -> tuple[Ints, Ints]:
    """For each query with parts, where its entries lie in the list of parts; and that list."""
    query = np.repeat(first, queries) + _within(queries)
    order = np.argsort(query, kind="stable").astype(np.int32)
    whom, begin = np.unique(query[order], return_index=True)
    end = np.append(begin[1:], parts)[: len(begin)]
    return np.stack((whom, begin, end), axis=1).astype(np.int32).reshape(-1, 3), order
