"""Plain torch as a `Backend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.torch import attention, elementwise, sampling
from kernels.torch.linear import PackedLinear, add_linear, linear, norm_linear, norm_swiglu, pack_linear


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """See kernels/backend.py."""

    device: str = "cpu"

    name = "torch"
    rounds_weights = False

    linear = staticmethod(linear)
    norm_linear = staticmethod(norm_linear)
    norm_swiglu = staticmethod(norm_swiglu)
    add_linear = staticmethod(add_linear)
    rms_norm = staticmethod(elementwise.rms_norm)
    silu_and_mul = staticmethod(elementwise.silu_and_mul)
    rope_angles = staticmethod(elementwise.rope_angles)
    rope_and_cache_kv = staticmethod(attention.rope_and_cache_kv)
    paged_attention = staticmethod(attention.paged_attention)
    copy_blocks = staticmethod(attention.copy_blocks)
    move_blocks = staticmethod(attention.move_blocks)
    greedy = staticmethod(sampling.greedy)
    sample = staticmethod(sampling.sample)
    logprobs = staticmethod(sampling.logprobs)

    def new_kv(self, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> Tensor:
        return elementwise.zeros((num_blocks + 1, 2, kv_heads, block_size, head_dim), dtype, self.device)

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
        return pack_linear(weight, bias)

    def weights_dtype(self, packed: PackedLinear) -> str:
        return str(packed.weight.dtype).removeprefix("torch.")

    def plan_attention(
        self,
        spans: Sequence[attention.SpanTable],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> attention.AttentionPlan:
        return attention.plan_attention(
            spans,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            dtype=dtype,
            device=self.device,
        )

    def fuse_layers(self, layers: object, **_: object) -> None:
        """Torch has no such operation."""
