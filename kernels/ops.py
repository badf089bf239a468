"""Operations for who has a device's name but no `Backend` at hand; contracts are in kernels/backend.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.backend import Backend, Plan, SpanTable, gpu_backend, torch_backend
from kernels.sampling import Bias, Logprobs, Mask, Penalties, SamplingRows

__all__ = [
    "Bias",
    "Logprobs",
    "Mask",
    "Penalties",
    "SamplingRows",
    "SpanTable",
    "copy_blocks",
    "greedy",
    "logprobs",
    "move_blocks",
    "new_kv",
    "plan_attention",
    "sample",
]


def _on(device: torch.device | str) -> Backend:
    return torch_backend() if torch.device(device).type == "cpu" else gpu_backend(str(device))


def new_kv(num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, device: str) -> Tensor:
    return _on(device).new_kv(num_blocks, kv_heads, block_size, head_dim, dtype)


def plan_attention(
    spans: Sequence[SpanTable],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: str,
    compiled: bool = False,
) -> Plan:
    """`compiled`: for the C++ kernels of the CPU, which must be ready."""
    if compiled:
        from kernels.cpp.attention import plan_attention as cpp_plan

        return cpp_plan(spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    return _on(device).plan_attention(spans, dtype=dtype, **sizes)


def copy_blocks(kv: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    _on(kv.device).copy_blocks(kv, pairs)


def move_blocks(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    _on(source.device if source.device.type != "cpu" else destination.device).move_blocks(source, destination, pairs)


def greedy(logits: Tensor) -> Tensor:
    return _on(logits.device).greedy(logits)


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    return _on(logits.device).sample(logits, rows)


def logprobs(logits: Tensor, tokens: Tensor, count: int) -> Logprobs:
    return _on(logits.device).logprobs(logits, tokens, count)
