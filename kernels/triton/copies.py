"""Whole blocks from place to place: copy-on-write within a pool, swap between a pool and pinned host memory."""

from __future__ import annotations

import triton.language as tl

from kernels.triton.compilations import kernel


@kernel(varies=("pairs",))
def copy_block_pairs(source, destination, pairs, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """For each pair (a, b): block b of destination = block a of source, both read as int32 words, WORDS to a block."""
    a = tl.load(pairs + tl.program_id(0) * 2).to(tl.int64)
    b = tl.load(pairs + tl.program_id(0) * 2 + 1).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = word < WORDS
    value = tl.load(source + a * WORDS + word, mask=inside)
    tl.store(destination + b * WORDS + word, value, mask=inside)


@kernel(varies=("patches", "count", "table_stride"))
def patch_tables(tables, patches, count, table_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """tables[row, index] = block for `count` patches (row, index, block); a row and index occur once."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < tl.load(count)
    row = tl.load(patches + i * 3, mask=inside, other=0).to(tl.int64)
    index = tl.load(patches + i * 3 + 1, mask=inside, other=0)
    block = tl.load(patches + i * 3 + 2, mask=inside, other=0)
    tl.store(tables + row * table_stride + index, block, mask=inside)
