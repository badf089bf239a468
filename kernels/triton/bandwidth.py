"""A kernel that only reads, for benchmarks: what the memory gives when nothing else is asked of it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sum_all(data, sink, size, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        at = start + step * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(data + at, mask=at < size, other=0.0)
    tl.store(sink + tl.program_id(0) % 4096, tl.sum(total, 0))


def read_all(data: Tensor, sink: Tensor) -> None:
    """Read float32 `data`; sums end in `sink` [4096], so that nothing is left out."""
    block, steps = 4096, 4
    _sum_all[(triton.cdiv(data.numel(), block * steps),)](
        data, sink, data.numel(), BLOCK=block, STEPS=steps, num_warps=8
    )
