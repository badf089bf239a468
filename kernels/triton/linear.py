"""Matrix products of few rows, which read each weight once: as fast as memory delivers it.

For a handful of tokens a product is a read of its weight. What follows it, the residual's sum or SwiGLU, is done on
the way. (The RMSNorm before it is not: done here by every program anew, it cost more than the kernel it saves.) Before
a program waits for the kernel ahead of it, it has its first weights brought into the second-level cache. Larger
batches go to cuBLAS.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.compilations import kernel


@triton.jit
def _bring_closer(pointers):
    """Start to read the cache lines that these pointers name into the second-level cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@kernel(varies=("rows",))
def few_rows_linear(
    x,
    weight,
    bias,
    out,
    rows,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    GATE: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """BLOCK_OUT columns of the result for all rows a program; weight [OUT, IN], or [2 * OUT, IN] for GATE.

    GATE: the weight holds gates, then ups; the result is
    silu(gate) * up. ADD: the result is added to `out`. Products and sums are float32. AHEAD: cache lines of each weight
    row that are brought closer while the kernel ahead still runs.
    """
    n = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    k = tl.arange(0, BLOCK_IN)
    m = tl.arange(0, ROWS)
    n_inside = n < OUT
    w_row = tl.where(n_inside, n, 0).to(tl.int64) * IN
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if AHEAD > 0:
            line = tl.arange(0, AHEAD) * 64  # 128 bytes of 16-bit numbers
            _bring_closer(weight + w_row[:, None] + line[None, :])
            if GATE:
                _bring_closer(weight + OUT * IN + w_row[:, None] + line[None, :])
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    up_acc = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
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
        acc = tl.dot(value, w, acc)
        if GATE:
            if IN % BLOCK_IN == 0:
                w_up = tl.load(weight + OUT * IN + w_row[None, :] + column[:, None], eviction_policy="evict_first")
            else:
                w_up = tl.load(
                    weight + OUT * IN + w_row[None, :] + column[:, None], mask=(column < IN)[:, None], other=0.0
                )
            up_acc = tl.dot(value, w_up, up_acc)
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
