"""The operations an engine needs, each with its contract; the implementation follows the tensor's device.

A CPU has two: torch's, and C++ for those who have a compiler (`start_cpu_kernels`). What was packed in a form, and what
was planned for compiled kernels, goes there; all of it in float32, but for the weights and the pool.

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

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import kernels.cpp as cpp_kernels
import kernels.torch as torch_kernels
from kernels.cpp.attention import CppPlan
from kernels.cpp.layers import FusedLayers, LayerWeights
from kernels.cpp.library import FORMS, Form
from kernels.cpp.linear import PanelLinear
from kernels.sampling import Bias, Logprobs, Mask, Penalties, SamplingRows
from kernels.torch.attention import SpanTable
from kernels.torch.linear import PackedLinear

__all__ = [
    "FORMS",
    "AttentionPlan",
    "Bias",
    "Form",
    "FusedLayers",
    "Linear",
    "Logprobs",
    "Mask",
    "PanelLinear",
    "Penalties",
    "SamplingRows",
    "SpanTable",
    "add_linear",
    "choose_form",
    "copy_blocks",
    "cpu_kernels_detail",
    "fuse_layers",
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
    "start_cpu_kernels",
]


class AttentionPlan(Protocol):
    """What `plan_attention` makes: whoever made it reads the rest."""

    @property
    def positions(self) -> Tensor:
        """Place of each of the step's tokens in its sequence, integers [T]."""


Linear = PackedLinear | PanelLinear
"""A weight [out, in] and its bias, as `pack_linear` leaves them."""

Angles = tuple[Tensor, Tensor]
"""What `rope_angles` makes; only the same device's `rope_and_cache` reads it."""


def _implementation(device: str) -> Any:
    if device == "cpu":
        return torch_kernels
    import kernels.triton as triton_kernels  # needs Triton, which a machine without a GPU may lack

    return triton_kernels


def _of(tensor: Tensor) -> Any:
    return _implementation(tensor.device.type)


def _for(packed: Linear) -> Any:
    return cpp_kernels if isinstance(packed, PanelLinear) else _of(packed.weight)


def start_cpu_kernels(cache: Path, tell: Callable[[str], None]) -> str | None:
    """Makes the C++ kernels ready, from `cache`, or compiled there in some seconds, which `tell` is told in words.

    None: they are. Else why they are not.
    """
    return cpp_kernels.start(cache, tell)


def cpu_kernels_detail() -> str:
    """For people: which instructions the C++ kernels use and which compiler made them; "" before they are ready."""
    return cpp_kernels.detail()


def new_kv(num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype, device: str) -> Tensor:
    """The zeroed pool of one layer: `num_blocks` usable blocks and the null block.

    On a CPU its pages take no memory before they are written.
    """
    shape = (num_blocks + 1, 2, kv_heads, block_size, head_dim)
    return _implementation(torch.device(device).type).zeros(shape, dtype, device)


def choose_form(weight: Tensor) -> Form:
    """int4 where the numbers lie on a 4-bit grid, as those of a 4-bit file do, so that nothing is lost; else int8.

    For weights on a CPU, once its C++ kernels are ready.
    """
    return cpp_kernels.choose_form(weight)


def pack_linear(weight: Tensor, bias: Tensor | None = None, form: Form | None = None) -> Linear:
    """`weight` [out, in] in the layout that `linear` reads fastest on its device.

    The result replaces the weight: where packing copies, nothing keeps the original. With a `form`, it is for the C++
    kernels of the CPU, which must be ready, and holds the numbers rounded to that.
    """
    if form is not None:
        return cpp_kernels.pack_linear(weight, bias, form)
    return _of(weight).pack_linear(weight, bias)


def linear(x: Tensor, packed: Linear) -> Tensor:
    """x [T, in] -> [T, out], in x's dtype, which is the weight's, or float32 where that is in a form."""
    return _for(packed).linear(x, packed)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x of any shape and stride."""
    return _of(x).rms_norm(x, weight, eps)


def norm_linear(x: Tensor, norm: Tensor, eps: float, packed: Linear) -> Tensor:
    """linear(rms_norm(x, norm, eps)); x [T, in] -> [T, out]."""
    return _for(packed).norm_linear(x, norm, eps, packed)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, packed: Linear) -> Tensor:
    """silu_mul(linear(rms_norm(x, norm, eps))); x [T, in] -> [T, out / 2]."""
    return _for(packed).norm_swiglu(x, norm, eps, packed)


def add_linear(x: Tensor, packed: Linear, residual: Tensor) -> None:
    """residual += linear(x), in place; x [T, in], residual [T, out]."""
    _for(packed).add_linear(x, packed, residual)


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
    implementation = cpp_kernels if isinstance(plan, CppPlan) else _of(qkv)
    return implementation.rope_and_cache(qkv, heads, angles, kv, plan, norms)


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
) -> AttentionPlan:
    """What `rope_and_cache` and `paged_attention` need to know of a step; built once, used by all layers.

    Each span holds tokens start .. start + count - 1 of one sequence, whose block table covers them; the tokens of
    the step are the spans' in order. Decode is a span of one token. `compiled`: for the C++ kernels of the CPU, which
    must be ready; `dtype` is that of queries, and of the pool but with these: they also read a bfloat16 pool.
    """
    if compiled:
        return cpp_kernels.plan_attention(
            spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size
        )
    return _implementation(torch.device(device).type).plan_attention(
        spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype, device=device
    )


def paged_attention(q: Tensor, kv: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Causal attention of each token to its own sequence's tokens 0 .. position, read through the block table.

    q [T, H, D], rotated; the keys and values of the step's own tokens must already be in `kv`. Query head h reads
    key/value head h // (H / K). Softmax in float32. Returns [T, H, D].
    """
    implementation = cpp_kernels if isinstance(plan, CppPlan) else _of(q)
    return implementation.paged_attention(q, kv, plan, scale)


def fuse_layers(
    layers: Sequence[LayerWeights], *, heads: int, kv_heads: int, head_dim: int, eps: float, inv_freq: Tensor
) -> FusedLayers | None:
    """All of a decoder's layers as one operation, for plans of compiled kernels; None where there is no such thing.

    It does what norm_linear, rope_angles, rope_and_cache, paged_attention, add_linear, norm_swiglu and add_linear do,
    layer after layer, but for the last bit of the angles.
    """
    return cpp_kernels.fuse_layers(
        layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, eps=eps, inv_freq=inv_freq
    )


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
