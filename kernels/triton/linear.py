"""Matrix products of few rows, which read each weight once: as fast as memory delivers it.

For a handful of tokens a product is a read of its weight. What stands before and after it is done on the way, so
that no other kernel runs between two reads: the RMSNorm before (its sum of squares comes with the rows, which each
program reads whole), the residual's sum or SwiGLU after. Larger batches go to cuBLAS.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def few_rows_linear(
    x,
    weight,
    bias,
    norm,
    out,
    rows,
    eps,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """BLOCK_OUT columns of the result for all rows a program; weight [OUT, IN], or [2 * OUT, IN] for GATE.

    NORM: x is normalised first, with the weights `norm`. GATE: the weight holds gates, then ups; the result is
    silu(gate) * up. ADD: the result is added to `out`. Products and sums are float32.
    """
    n = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    k = tl.arange(0, BLOCK_IN)
    m = tl.arange(0, ROWS)
    n_inside = n < OUT
    w_row = tl.where(n_inside, n, 0).to(tl.int64) * IN
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    up_acc = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    squares = tl.zeros((ROWS, BLOCK_IN), tl.float32)
    for start in tl.range(0, IN, BLOCK_IN, num_stages=STAGES):
        column = start + k
        if IN % BLOCK_IN == 0:
            w = tl.load(weight + w_row[None, :] + column[:, None], eviction_policy="evict_first")
            value = tl.load(x + m[:, None] * IN + column[None, :], mask=(m < rows)[:, None], other=0.0)
        else:
            inside = column < IN
            w = tl.load(weight + w_row[None, :] + column[:, None], mask=inside[:, None], other=0.0)
            value = tl.load(
                x + m[:, None] * IN + column[None, :], mask=(m < rows)[:, None] & inside[None, :], other=0.0
            )
        if NORM:
            wide = value.to(tl.float32)
            squares += wide * wide
            scale = tl.load(norm + column, mask=column < IN, other=0.0).to(tl.float32)
            value = (wide * scale[None, :]).to(value.dtype)
        acc = tl.dot(value, w, acc)
        if GATE:
            if IN % BLOCK_IN == 0:
                w_up = tl.load(weight + OUT * IN + w_row[None, :] + column[:, None], eviction_policy="evict_first")
            else:
                w_up = tl.load(
                    weight + OUT * IN + w_row[None, :] + column[:, None], mask=(column < IN)[:, None], other=0.0
                )
            up_acc = tl.dot(value, w_up, up_acc)
    if NORM:
        ratio = 1.0 / tl.sqrt(tl.sum(squares, 1) / IN + eps)
        acc = acc * ratio[:, None]
        up_acc = up_acc * ratio[:, None]
    if BIAS:
        acc += tl.load(bias + n, mask=n_inside, other=0.0).to(tl.float32)[None, :]
        if GATE:
            up_acc += tl.load(bias + OUT + n, mask=n_inside, other=0.0).to(tl.float32)[None, :]
    if GATE:
        acc = acc * tl.sigmoid(acc) * up_acc
    to = out + m[:, None] * OUT + n[None, :]
    mask = (m < rows)[:, None] & n_inside[None, :]
    if ADD:
        acc += tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, acc.to(out.dtype.element_ty), mask=mask)
