"""Paged attention: one kernel for decode, chunked prefill and shared prefixes; a second merges what was split.

Work comes as *items* (`kernels/triton/plan.py` makes them): some queries that read the same keys of one block table.

```
item      queries                         keys
decode    one token                       a piece of its sequence, as far as it has grown
shared    the tokens of many sequences    a piece of the blocks they have in common
prefill   neighbouring tokens of a span   a piece of their sequence, causally
```

The query heads of a key/value head are rows of one matrix product, for all queries of the item; a program takes one
item and one key/value head. Scores are kept to base 2. An item whose queries have no other writes their result;
the others leave a normalised part and its logarithm (base 2) of the sum, merged by `merge_parts`
(Hydragen, arXiv 2402.05099, section 3.1; FlashDecoding).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.compilations import kernel

ITEM_FIELDS = 6
"""first query, queries, table row, first key, key after the last, part (-1: none, the result is written)."""
MERGE_FIELDS = 3
"""query, first of its entries in the list of parts, entry after the last."""


@kernel(varies=("tables", "positions", "items", "count", "lse", "table_stride"))
def attend_items(
    q,
    kv,
    tables,
    positions,
    items,
    count,
    out,
    parts,
    lse,
    scale,
    q_stride,
    out_stride,
    table_stride,
    block_stride,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    LOOP: tl.constexpr,
    BESIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One item and one key/value head a program; programs past `count` items do nothing.

    q [T, H, D], rows q_stride apart; kv of one layer, blocks block_stride numbers apart; tables [rows, table_stride]
    int32; positions [T] int32; out [T, H, D], rows out_stride apart; parts [P, H, D] and lse [P, H] float32. `scale`
    multiplies the products; WINDOW > 0 hides keys that many or more places back; SOFT_CAP > 0 bounds the scores.

    LOOP: fewer programs than items, each takes several. BESIDE: may run at the same time as the kernel started before
    it, which is one of these with LOOP; nobody may start before both have ended.
    """
    if PDL:
        if not BESIDE:
            tl.extra.cuda.gdc_wait()
        if LOOP:
            # Every program of this kernel is past its wait when the next one starts: what that one reads is there.
            tl.extra.cuda.gdc_launch_dependents()
    if LOOP:
        for work in range(tl.program_id(0), tl.load(count) * KV_HEADS, tl.num_programs(0)):
            fields = items + work // KV_HEADS * 6
            _attend(
                q, kv, tables, positions, out, parts, lse,
                tl.load(fields), tl.load(fields + 1), tl.load(fields + 2),
                tl.load(fields + 3), tl.load(fields + 4), tl.load(fields + 5), work % KV_HEADS,
                scale, q_stride, out_stride, table_stride, block_stride,
                WINDOW, SOFT_CAP, GROUP, KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, ROWS, TILE, PRECISION,
            )  # fmt: skip
    else:
        item = tl.program_id(0) // KV_HEADS
        fields = items + item * 6
        first, queries, table_row = tl.load(fields), tl.load(fields + 1), tl.load(fields + 2)
        start, stop, part = tl.load(fields + 3), tl.load(fields + 4), tl.load(fields + 5)
        if item < tl.load(count):  # after the loads, which so wait for memory once
            _attend(
                q, kv, tables, positions, out, parts, lse,
                first, queries, table_row, start, stop, part, tl.program_id(0) % KV_HEADS,
                scale, q_stride, out_stride, table_stride, block_stride,
                WINDOW, SOFT_CAP, GROUP, KV_HEADS, HEAD_DIM, BLOCK_D, BLOCK_SIZE, ROWS, TILE, PRECISION,
            )  # fmt: skip
    if PDL and BESIDE:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _attend(
    q,
    kv,
    tables,
    positions,
    out,
    parts,
    lse,
    first,
    queries,
    table_row,
    start,
    stop,
    part,
    head,
    scale,
    q_stride,
    out_stride,
    table_stride,
    block_stride,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One item (its fields: `first` .. `part`) and one key/value head."""
    table = tables + table_row.to(tl.int64) * table_stride
    newest = tl.load(positions + first)
    if queries == 1:  # planned for the steps to come as well
        stop = tl.minimum(stop, newest + 1)

    row = tl.arange(0, ROWS)
    query = row // GROUP
    q_head = head * GROUP + row % GROUP
    d = tl.arange(0, BLOCK_D)
    real = query < queries
    token = (first + query).to(tl.int64)
    mask = real[:, None] & (d < HEAD_DIM)[None, :]
    q_tile = tl.load(q + token[:, None] * q_stride + q_head[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
    position = tl.load(positions + token, mask=real, other=stop)

    log2e: tl.constexpr = 1.4426950408889634
    if SOFT_CAP > 0:
        to_base_2 = log2e
    else:
        to_base_2 = scale * log2e
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    key = tl.arange(0, TILE)
    k_base = kv + head * BLOCK_SIZE * HEAD_DIM + d[:, None]
    v_base = kv + (KV_HEADS + head) * BLOCK_SIZE * HEAD_DIM + d[None, :]

    # The first query's position bounds what all of them see: these tiles need no mask.
    if WINDOW > 0:
        clear = start
    else:
        clear = start + tl.maximum(tl.minimum(stop, newest + 1) - start, 0) // TILE * TILE
    for begin in range(start, clear, TILE):
        n = begin + key
        page = tl.load(table + n // BLOCK_SIZE).to(tl.int64) * block_stride
        offset = page + (n % BLOCK_SIZE) * HEAD_DIM
        if BLOCK_D == HEAD_DIM:
            k = tl.load(k_base + offset[None, :])
            v = tl.load(v_base + offset[:, None])
        else:
            k = tl.load(k_base + offset[None, :], mask=(d < HEAD_DIM)[:, None], other=0.0)
            v = tl.load(v_base + offset[:, None], mask=(d < HEAD_DIM)[None, :], other=0.0)
        s = tl.dot(q_tile, k, input_precision=PRECISION)
        if SOFT_CAP > 0:
            s = SOFT_CAP * (2.0 / (1.0 + tl.exp2(-2.0 * log2e * scale * s / SOFT_CAP)) - 1.0)
        higher = tl.maximum(best, tl.max(s, 1) * to_base_2)
        p = tl.exp2(s * to_base_2 - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        best = higher

    for begin in range(clear, stop, TILE):
        n = begin + key
        inside = n < stop
        page = tl.load(table + n // BLOCK_SIZE, mask=inside, other=0).to(tl.int64) * block_stride
        offset = page + (n % BLOCK_SIZE) * HEAD_DIM
        k = tl.load(k_base + offset[None, :], mask=inside[None, :] & (d < HEAD_DIM)[:, None], other=0.0)
        v = tl.load(v_base + offset[:, None], mask=inside[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
        s = tl.dot(q_tile, k, input_precision=PRECISION)
        if SOFT_CAP > 0:
            s = SOFT_CAP * (2.0 / (1.0 + tl.exp2(-2.0 * log2e * scale * s / SOFT_CAP)) - 1.0)
        seen = inside[None, :] & (n[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (n[None, :] > position[:, None] - WINDOW)
        s = tl.where(seen, s * to_base_2, float("-inf"))
        higher = tl.maximum(best, tl.max(s, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen no key yet
        p = tl.exp2(s - shift[:, None])
        shrink = tl.exp2(best - shift)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        best = higher

    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    if part < 0:
        to = out + token[:, None] * out_stride + q_head[:, None] * HEAD_DIM + d[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=mask)
    else:
        place = (part + query).to(tl.int64) * (KV_HEADS * GROUP) + q_head
        tl.store(parts + place[:, None] * HEAD_DIM + d[None, :], result, mask=mask)
        tl.store(lse + place, tl.where(total > 0, best + tl.log2(total), float("-inf")), mask=real)


@kernel(varies=("lse", "merges", "count", "entries"))
def merge_parts(
    parts,
    lse,
    merges,
    count,
    entries,
    out,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """The results of the queries that were split, from their parts; one query and head a program."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    merge = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(merges + merge * 3).to(tl.int64)
    begin = tl.load(merges + merge * 3 + 1)
    end = tl.load(merges + merge * 3 + 2)
    if merge >= tl.load(count):
        return
    d = tl.arange(0, BLOCK_D)
    best = float("-inf")
    total = 0.0
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for i in range(begin, end, TILE):
        entry = i + tl.arange(0, TILE)
        inside = entry < end
        part = tl.load(entries + entry, mask=inside, other=0).to(tl.int64)
        place = part * HEADS + head
        log = tl.load(lse + place, mask=inside, other=float("-inf"))
        mask = inside[:, None] & (d < HEAD_DIM)[None, :]
        values = tl.load(parts + place[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
        higher = tl.maximum(best, tl.max(log, 0))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(log - shift)
        shrink = tl.exp2(best - shift)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(values * weight[:, None], 0)
        best = higher
    result = acc / total
    tl.store(out + token * out_stride + head * HEAD_DIM + d, result.to(out.dtype.element_ty), mask=d < HEAD_DIM)
