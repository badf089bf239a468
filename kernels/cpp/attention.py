"""Paged attention and the KV write; see source/attention.h for how the work is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpp.library import Plan, Pool, library, pointer
from kernels.torch.attention import SpanTable

_CHUNK = 256
"""Slots of a chunk, as in source/attention.h."""


@dataclass(frozen=True, slots=True)
class CppPlan:
    """One step, as all layers need it."""

    c: Plan
    arrays: tuple[NDArray[np.int32] | NDArray[np.int64], ...]
    """What `c` points to."""
    spans: NDArray[np.int64]
    owners: NDArray[np.int32]
    firsts: NDArray[np.int64]
    pieces: Tensor
    """Memory for what is attended to in chunks."""

    @property
    def positions(self) -> Tensor:
        """int64 [T]."""
        tokens = np.arange(len(self.owners), dtype=np.int64)
        return torch.from_numpy(tokens + (self.spans - self.firsts[:-1])[self.owners])


def plan_attention(spans: Sequence[SpanTable], *, heads: int, kv_heads: int, head_dim: int, block_size: int) -> CppPlan:
    starts = np.array([span.start for span in spans], np.int64)
    counts = np.array([span.count for span in spans], np.int64)
    tables = [span.table[: -(-(span.start + span.count) // block_size)] for span in spans]
    blocks = np.array([block for table in tables for block in table], np.int32)
    queries = library().pagechat_task_queries(heads, kv_heads)
    alone = counts == 1
    pieces = np.where(alone, (starts + _CHUNK) // _CHUNK, 0) * kv_heads
    tasks = np.where(alone, pieces, -(-counts // queries) * kv_heads)
    firsts, table_starts, task_starts, piece_starts = (
        _sums(sizes) for sizes in (counts, np.array([len(table) for table in tables], np.int64), tasks, pieces)
    )
    owners = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
    arrays = (starts, firsts, table_starts, blocks, owners, task_starts, piece_starts)
    room = int(piece_starts[-1]) * library().pagechat_piece_floats(heads, kv_heads, head_dim)
    c = Plan(len(spans), len(owners), *(array.ctypes.data for array in arrays))
    return CppPlan(c, arrays, starts, owners, firsts, torch.empty(room, dtype=torch.float32))


def _sums(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Before each, and of all."""
    sums = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=sums[1:])
    return sums


def pool_of(kv: Tensor) -> Pool:
    _, _, heads, block_size, dim = kv.shape
    return Pool(kv.data_ptr(), heads, block_size, dim, kv.dtype == torch.bfloat16)


def rope_and_cache_kv(
    qkv: Tensor,
    heads: int,
    angles: tuple[Tensor, Tensor] | None,
    kv: Tensor,
    plan: CppPlan,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    q_norm, k_norm, eps = norms or (None, None, 0.0)
    half = qkv.shape[-1] // 2
    cosines, sines = (None, None) if angles is None else angles
    library().pagechat_rope_and_cache(
        plan.c,
        pool_of(kv),
        heads,
        qkv.data_ptr(),
        pointer(cosines),
        None if sines is None else sines[..., half:].data_ptr(),
        2 * half,
        pointer(q_norm),
        pointer(k_norm),
        eps,
        torch.get_num_threads(),
    )
    return qkv[:, :heads]


def paged_attention(q: Tensor, kv: Tensor, plan: CppPlan, scale: float) -> Tensor:
    tokens, heads, dim = q.shape
    if q.stride(1) != dim:
        q = q.contiguous()
    out = torch.empty(tokens, heads, dim, dtype=torch.float32)
    library().pagechat_attention(
        plan.c,
        pool_of(kv),
        heads,
        q.data_ptr(),
        q.stride(0),
        scale,
        out.data_ptr(),
        plan.pieces.data_ptr(),
        torch.get_num_threads(),
    )
    return out
