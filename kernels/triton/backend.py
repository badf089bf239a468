"""Triton's kernels as a `Backend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.torch import sampling
from kernels.torch.attention import SpanTable
from kernels.torch.linear import PackedLinear
from kernels.triton import draw, launch, plan


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """See kernels/backend.py."""

    device: str = "cuda"

    name = "Triton"
    rounds_weights = False

    linear = staticmethod(launch.linear)
    norm_linear = staticmethod(launch.norm_linear)
    norm_swiglu = staticmethod(launch.norm_swiglu)
    add_linear = staticmethod(launch.add_linear)
    rms_norm = staticmethod(launch.rms_norm)
    silu_and_mul = staticmethod(launch.silu_and_mul)
    rope_angles = staticmethod(launch.rope_angles)
    rope_and_cache_kv = staticmethod(launch.rope_and_cache_kv)
    paged_attention = staticmethod(launch.paged_attention)
    copy_blocks = staticmethod(launch.copy_blocks)
    move_blocks = staticmethod(launch.move_blocks)
    greedy = staticmethod(draw.greedy)
    sample = staticmethod(draw.sample)
    logprobs = staticmethod(sampling.logprobs)

    def new_kv(self, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> Tensor:
        return launch.zeros((num_blocks + 1, 2, kv_heads, block_size, head_dim), dtype, self.device)

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
        return launch.pack_linear(weight, bias)

    def weights_dtype(self, packed: PackedLinear) -> str:
        return str(packed.weight.dtype).removeprefix("torch.")

    def plan_attention(
        self,
        spans: Sequence[SpanTable],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> plan.AttentionPlan:
        return plan.plan_attention(
            spans,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            dtype=dtype,
            device=self.device,
        )

    def fuse_layers(self, layers: object, **_: object) -> None:
        """A GPU's steps are CUDA graphs instead."""
