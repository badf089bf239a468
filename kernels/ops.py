"""The operations an engine needs, each with its contract; the implementation follows the tensor's device.

Tensors in, tensors out: nothing here knows a model, a sequence or a request. Shapes use these letters:

```
T  tokens of a step, all sequences one after the other      D  head_dim
H  query heads       K  key/value heads (H % K == 0)        B  block size (slots in a block)

kv of one layer: [num_blocks + 1, 2, K, B, D], contiguous; [b, 0] keys, [b, 1] values of block b
slot = block * B + offset;   block 0 is the null block: padding reads it, no token is ever written there
```

A slot never written, or written by a sequence that no longer owns it, may hold anything, NaN included:
it does not change a result. `new_kv` still zeroes the pool, so that a bug shows as the same wrong number twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

import kernels.torch as torch_kernels
from kernels.sampling import Bias, Logprobs, Mask, Penalties, SamplingRows
from kernels.torch.attention import SpanTable
from kernels.torch.linear import PackedLinear

__all__ = [
    "AttentionPlan",
    "Bias",
    "Logprobs",
    "Mask",
    "PackedLinear",
    "Penalties",
    "SamplingRows",
    "SpanTable",
    "add_linear",
    "copy_blocks",
    "greedy",
    "linear",
    "logprobs",
    "move_blocks",
    "new_kv",
    "norm_linear",
    "norm_swiglu",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope_and_cache",
    "rope_angles",
    "sample",
    "silu_mul",
]


class AttentionPlan(Protocol):
    """What `plan_attention` makes: whoever made it reads the rest."""

    @property
    def positions(self) -> Tensor:
        """Place of each of the step's tokens in its sequence, integers [T]."""


Angles = tuple[Tensor, Tensor]
"""What `rope_angles` makes; only the same device's `rope_and_cache` reads it."""


def _implementation(device: str) -> Any:
    if device == "cpu":
        return torch_kernels
    import kernels.triton as triton_kernels  # needs Triton, which a machine without a GPU may lack

    return triton_kernels


def _of(tensor: Tensor) -> Any:
    return _implementation(tensor.device.type)


def new_kv(num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, device: str) -> Tensor:
    """The zeroed pool of one layer: `num_blocks` usable blocks and the null block.

    On a CPU its pages take no memory before they are written.
    """
    shape = (num_blocks + 1, 2, kv_heads, block_size, head_dim)
    return _implementation(torch.device(device).type).zeros(shape, dtype, device)


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """`weight` [out, in] in the layout that `linear` reads fastest on its device.

    The result replaces the weight: where packing copies, nothing keeps the original.
    """
    return _of(weight).pack_linear(weight, bias)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """x [T, in] -> [T, out], in x's dtype, which is the weight's."""
    return _of(x).linear(x, packed)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x of any shape and stride."""
    return _of(x).rms_norm(x, weight, eps)


def norm_linear(x: Tensor, norm: Tensor, eps: float, packed: PackedLinear) -> Tensor:
    """linear(rms_norm(x, norm, eps)); x [T, in] -> [T, out]."""
    return _of(x).norm_linear(x, norm, eps, packed)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, packed: PackedLinear) -> Tensor:
    """silu_mul(linear(rms_norm(x, norm, eps))); x [T, in] -> [T, out / 2]."""
    return _of(x).norm_swiglu(x, norm, eps, packed)


def add_linear(x: Tensor, packed: PackedLinear, residual: Tensor) -> None:
    """residual += linear(x), in place; x [T, in], residual [T, out]."""
    _of(x).add_linear(x, packed, residual)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 * n], gate before up -> silu(gate) * up, [T, n]. `gate_up` is scratch afterwards."""
    return _of(gate_up).silu_mul(gate_up)


def rope_angles(positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype) -> Angles:
    """Cosines and sines for positions [T] and inv_freq [D / 2] (float32), for queries and keys of `dtype`.

    Computed in float32 and multiplied by `scaling`; one pair serves all layers of a step.
    """
    return _of(positions).rope_angles(positions, inv_freq, scaling, dtype)


def rope_and_cache(
    qkv: Tensor,
    heads: int,
    angles: Angles | None,
    kv: Tensor,
    plan: AttentionPlan,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Normalises and rotates queries and keys, and writes keys and values to the slots of the plan's tokens.

    qkv [T, H + 2 * K, D]: queries, keys, values; scratch afterwards. `norms` are the RMSNorm weights [D] of queries
    and of keys, and epsilon; None for models without. `angles` from `rope_angles` (halves paired, as in Llama
    checkpoints of Hugging Face), None for a layer without rotary embedding. `kv` is written in place.
    Returns the queries, [T, H, D].
    """
    return _of(qkv).rope_and_cache(qkv, heads, angles, kv, plan, norms)


def plan_attention(
    spans: Sequence[SpanTable],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: str,
) -> AttentionPlan:
    """What `rope_and_cache` and `paged_attention` need to know of a step; built once, used by all layers.

    Each span holds tokens start .. start + count - 1 of one sequence, whose block table covers them; the tokens of
    the step are the spans' in order. Decode is a span of one token.
    """
    return _implementation(torch.device(device).type).plan_attention(
        spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype, device=device
    )


def paged_attention(q: Tensor, kv: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Causal attention of each token to its own sequence's tokens 0 .. position, read through the block table.

    q [T, H, D], rotated; the keys and values of the step's own tokens must already be in `kv`. Query head h reads
    key/value head h // (H / K). Softmax in float32. Returns [T, H, D].
    """
    return _of(q).paged_attention(q, kv, plan, scale)


def copy_blocks(kv: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks (source, destination) within one layer's pool, in place.

    All sources are read before any destination is written; destinations are distinct.
    """
    _of(kv).copy_blocks(kv, pairs)


def move_blocks(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copies whole blocks from one pool to another, (block of source, block of destination), across devices too.

    The pools have the same shape but for their number of blocks, and share no memory; destinations are distinct.
    """
    pool = source if source.device.type != "cpu" else destination
    _of(pool).move_blocks(source, destination, pairs)


def greedy(logits: Tensor) -> Tensor:
    """The largest logit of each row of [R, vocab], the lowest id among equals: int64 [R]."""
    return _of(logits).greedy(logits)


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """One token id a row of logits [R, vocab], which stay as they are: int64 [R].

    In this order, which is vLLM's, in float32:

    1. repetition penalty: a seen token's logit is divided by it where it is positive, else multiplied by it;
       then frequency * count and, where count > 0, presence are taken off (Penalties)
    2. bias is added (Bias); tokens that the row may not take are out (Mask)
    3. temperature 0 takes the largest logit, the lowest id among equals: done; else logits are divided by it
    4. min_p > 0 keeps the tokens at least min_p times as likely as the most likely one
    5. top_k > 0 keeps the k largest, and those equal to the last of them
    6. top_p < 1 keeps the fewest largest whose probabilities, of what is left, reach top_p, and those equal to the last
    7. a token is drawn by Gumbel-max

    The random numbers are a function of (seed, position, token id) alone, so a row's result does not depend on the
    other rows.
    """
    return _of(logits).sample(logits, rows)


def logprobs(logits: Tensor, tokens: Tensor, count: int) -> Logprobs:
    """Log-softmax in float32 of logits [R, vocab] at tokens [R], and the `count` largest of each row."""
    return _of(logits).logprobs(logits, tokens, count)
