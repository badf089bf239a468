"""The attention half of a layer, with its weights; and the rotary frequencies of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.models.config import RopeConfig
from kernels.backend import Backend, Linear, Plan


@dataclass(frozen=True, slots=True)
class Attention:
    """norm, queries/keys/values, rotation and KV write, attention, output: added to the residual."""

    norm: Tensor
    eps: float
    qkv: Linear
    """Queries, keys, values: one product."""
    qk_norms: tuple[Tensor, Tensor, float] | None
    """Weights [head_dim] for queries and for keys, and epsilon."""
    out: Linear
    heads: int
    head_dim: int
    scale: float
    rope: RopeConfig | None

    def add_to(self, residual: Tensor, pool: Tensor, plan: Plan, angles: dict[RopeConfig, Any], on: Backend) -> None:
        """residual [T, hidden] in place; `pool` is this layer's KV, `angles` those of the step by how they turn."""
        qkv = on.norm_linear(residual, self.norm, self.eps, self.qkv).view(len(residual), -1, self.head_dim)
        turned = None if self.rope is None else angles[self.rope]
        q = on.rope_and_cache_kv(qkv, self.heads, turned, pool, plan, self.qk_norms)
        on.add_linear(on.paged_attention(q, pool, plan, self.scale).flatten(1), self.out, residual)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Rotary frequencies, float32 [head_dim / 2]; as transformers' modeling_rope_utils computes them."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return inv_freq / rope.factor
    if rope.type == "llama3":
        return _llama3_frequencies(inv_freq, rope)
    return inv_freq


def _llama3_frequencies(inv_freq: Tensor, rope: RopeConfig) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    longest = rope.original_context / rope.low_freq_factor
    shortest = rope.original_context / rope.high_freq_factor
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > longest, inv_freq / rope.factor, inv_freq)
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = ~(wavelength < shortest) * ~(wavelength > longest)
    return torch.where(between, blended, scaled)
