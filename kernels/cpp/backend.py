"""The C++ kernels as a `Backend`; what they do not do, torch does. Ready once `kernels.cpp.start` has said so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpp import attention
from kernels.cpp.layers import FusedLayers, LayerWeights, fuse_layers
from kernels.cpp.library import Form
from kernels.cpp.linear import PanelLinear, add_linear, linear, norm_linear, norm_swiglu, pack_linear
from kernels.torch import attention as torch_attention
from kernels.torch import elementwise, sampling


@dataclass(frozen=True, slots=True)
class CppBackend:
    """See kernels/backend.py."""

    choose_form: Callable[[Tensor], Form]
    """How each matrix is held."""

    name = "C++"
    device = "cpu"
    rounds_weights = True

    linear = staticmethod(linear)
    norm_linear = staticmethod(norm_linear)
    norm_swiglu = staticmethod(norm_swiglu)
    add_linear = staticmethod(add_linear)
    rms_norm = staticmethod(elementwise.rms_norm)
    silu_and_mul = staticmethod(elementwise.silu_and_mul)
    rope_angles = staticmethod(elementwise.rope_angles)
    rope_and_cache_kv = staticmethod(attention.rope_and_cache_kv)
    paged_attention = staticmethod(attention.paged_attention)
    copy_blocks = staticmethod(torch_attention.copy_blocks)
    move_blocks = staticmethod(torch_attention.move_blocks)
    greedy = staticmethod(sampling.greedy)
    sample = staticmethod(sampling.sample)
    logprobs = staticmethod(sampling.logprobs)

    def new_kv(self, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> Tensor:
        return elementwise.zeros((num_blocks + 1, 2, kv_heads, block_size, head_dim), dtype, "cpu")

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> PanelLinear:
        return pack_linear(weight, bias, self.choose_form(weight))

    def weights_dtype(self, packed: PanelLinear) -> str:
        return packed.form

    def plan_attention(
        self,
        spans: Sequence[torch_attention.SpanTable],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> attention.CppPlan:
        return attention.plan_attention(spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)

    def fuse_layers(
        self,
        layers: Sequence[LayerWeights],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        eps: float,
        inv_freq: Tensor,
    ) -> FusedLayers | None:
        if scale != head_dim**-0.5:
            return None
        return fuse_layers(layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, eps=eps, inv_freq=inv_freq)
