"""What an engine needs of kernels: one `Backend`, chosen once when a model is loaded, and each operation's contract.

Tensors in, tensors out: nothing here knows a model, a sequence or a request. There are three: `kernels/torch` (a CPU,
and the reference for the others), `kernels/cpp` (a CPU whose user has a compiler), `kernels/triton` (an NVIDIA GPU).
Shapes use these letters:

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.cpp.library import FORMS, Form
from kernels.sampling import Logprobs, SamplingRows
from kernels.torch.attention import SpanTable

__all__ = [
    "FORMS",
    "Backend",
    "Form",
    "FusedLayers",
    "LayerWeights",
    "Linear",
    "Plan",
    "SpanTable",
    "gpu_backend",
    "start_cpp_backend",
    "torch_backend",
]


class Linear(Protocol):
    """A weight [out, in] and its bias, as `Backend.pack_linear` leaves them: `packed` of the operations.

    Only the backend that made it reads more.
    """

    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...


class Plan(Protocol):
    """What `Backend.plan_attention` makes: `plan` of the operations. Only the backend that made it reads more."""

    @property
    def positions(self) -> Tensor:
        """Place of each of the step's tokens in its sequence, integers [T]."""


Angles = Any
"""What `Backend.rope_angles` makes. Only the same backend's `rope_and_cache_kv` reads it."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A layer of Llama's kind, as far as `Backend.fuse_layers` can compute it: norm, attention, norm, SwiGLU."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    rotates: bool


class FusedLayers(Protocol):
    """All layers of a decoder as one operation."""

    def run(self, residual: Tensor, kv: Sequence[Tensor], plan: Any) -> None:
        """`residual` [T, hidden], in place; keys and values go to the pools in `kv`."""


class Backend(Protocol):
    """The operations on one device. Weights, plans and angles of one backend mean nothing to another."""

    @property
    def name(self) -> str:
        """C++, torch or Triton."""

    @property
    def device(self) -> str:
        """Where its tensors lie, as torch names devices."""

    @property
    def rounds_weights(self) -> bool:
        """Whether `pack_linear` takes weights of any float dtype on the CPU, as a checkpoint has them, and brings them
        into a form of its own. Else they are to be in the dtype of what is computed, on the backend's device."""

    # -- memory --------------------------------------------------------------------------------------

    def new_kv(self, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> Tensor:
        """The zeroed pool of one layer: `num_blocks` usable blocks and the null block.

        On a CPU its pages take no memory before they are written.
        """

    def copy_blocks(self, kv: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks (source, destination) within one layer's pool, in place.

        All sources are read before any destination is written; destinations are distinct.
        """

    def move_blocks(self, source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks from one pool to another, (block of source, block of destination).

        One of the pools may lie in host memory, pinned where the backend's device is a GPU. They have the same shape
        but for their number of blocks, and share no memory; destinations are distinct.
        """

    # -- matrix products -----------------------------------------------------------------------------

    def pack_linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """`weight` [out, in] in the layout that `linear` reads fastest; see `rounds_weights`.

        The result replaces the weight: where packing copies, nothing keeps the original.
        """

    def weights_dtype(self, packed: Any) -> str:
        """The numbers that `pack_linear` left, in a word: one of FORMS, or a dtype's name."""

    def linear(self, x: Tensor, packed: Any) -> Tensor:
        """x [T, in] -> [T, out], in x's dtype."""

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, packed: Any) -> Tensor:
        """linear(rms_norm(x, norm, eps)); x [T, in] -> [T, out]."""

    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, packed: Any) -> Tensor:
        """silu_and_mul(linear(rms_norm(x, norm, eps))); x [T, in] -> [T, out / 2]."""

    def add_linear(self, x: Tensor, packed: Any, residual: Tensor) -> None:
        """residual += linear(x), in place; x [T, in], residual [T, out]."""

    # -- between the products ------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x of any shape and stride."""

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * n], gate before up -> silu(gate) * up, [T, n]. `gate_up` is scratch afterwards."""

    # -- attention -----------------------------------------------------------------------------------

    def plan_attention(
        self,
        spans: Sequence[SpanTable],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> Plan:
        """What `rope_and_cache_kv` and `paged_attention` need to know of a step; built once, used by all layers.

        Each span holds tokens start .. start + count - 1 of one sequence, whose block table covers them; the tokens of
        the step are the spans' in order. Decode is a span of one token. `dtype` is that of queries and of the pool;
        C++ takes float32 queries and a pool of float32 or bfloat16.
        """

    def rope_angles(self, positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype) -> Angles:
        """Cosines and sines for positions [T] and inv_freq [D / 2] (float32), for queries and keys of `dtype`.

        Computed in float32 and multiplied by `scaling`; one serves all layers of a step that rotate alike.
        """

    def rope_and_cache_kv(
        self,
        qkv: Tensor,
        heads: int,
        angles: Angles | None,
        kv: Tensor,
        plan: Any,
        norms: tuple[Tensor, Tensor, float] | None = None,
    ) -> Tensor:
        """Normalises and rotates queries and keys, and writes keys and values to the slots of the plan's tokens.

        qkv [T, H + 2 * K, D]: queries, keys, values; scratch afterwards. `norms` are the RMSNorm weights [D] of queries
        and of keys, and epsilon; None for models without. `angles` from `rope_angles` (halves paired, as in Llama
        checkpoints of Hugging Face), None for a layer without rotary embedding. `kv` is written in place.
        Returns the queries, [T, H, D].
        """

    def paged_attention(self, q: Tensor, kv: Tensor, plan: Any, scale: float) -> Tensor:
        """Causal attention of each token to its own sequence's tokens 0 .. position, read through the block table.

        q [T, H, D], rotated; the keys and values of the step's own tokens must already be in `kv`. Query head h reads
        key/value head h // (H / K). Softmax in float32. Returns [T, H, D].
        """

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
        """All of a decoder's layers as one operation; None where the backend has none for such layers.

        It does what norm_linear, rope_angles, rope_and_cache_kv, paged_attention, add_linear, norm_swiglu and
        add_linear do, layer after layer, but for the last bit of the angles.
        """

    # -- choosing tokens -----------------------------------------------------------------------------

    def greedy(self, logits: Tensor) -> Tensor:
        """The largest logit of each row of [R, vocab], the lowest id among equals: int64 [R]."""

    def sample(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """One token id a row of logits [R, vocab], which stay as they are: int64 [R].

        In this order, which is vLLM's, in float32:

        1. repetition penalty: a seen token's logit is divided by it where it is positive, else multiplied by it;
           then frequency * count and, where count > 0, presence are taken off (Penalties)
        2. bias is added (Bias); tokens that the row may not take are out (Mask)
        3. temperature 0 takes the largest logit, the lowest id among equals: done; else logits are divided by it
        4. min_p > 0 keeps the tokens at least min_p times as likely as the most likely one
        5. top_k > 0 keeps the k largest, and those equal to the last of them
        6. top_p < 1 keeps the fewest largest whose probabilities, of what is left, reach top_p, and those equal to the
           last
        7. a token is drawn by Gumbel-max

        The random numbers are a function of (seed, position, token id) alone, so a row's result does not depend on the
        other rows.
        """

    def logprobs(self, logits: Tensor, tokens: Tensor, count: int) -> Logprobs:
        """Log-softmax in float32 of logits [R, vocab] at tokens [R], and the `count` largest of each row."""


def torch_backend(device: str = "cpu") -> Backend:
    """Plain torch, on any device."""
    from kernels.torch.backend import TorchBackend

    return TorchBackend(device)


def start_cpp_backend(
    cache: Path, tell: Callable[[str], None], choose_form: Callable[[Tensor], Form] | None = None
) -> Backend | str:
    """The C++ kernels of the CPU, from `cache`, or compiled there in some seconds, which `tell` is told in words.

    `choose_form` says how each matrix is held; None: int4 where the numbers lie on a 4-bit grid, as those of a 4-bit
    file do, so that nothing is lost, else int8. Where the kernels cannot be had, the result says why, in words.
    """
    import kernels.cpp as cpp
    from kernels.cpp.backend import CppBackend

    problem = cpp.start(cache, tell)
    return CppBackend(choose_form or cpp.choose_form) if problem is None else problem


def gpu_backend(device: str) -> Backend:
    """Triton's kernels, on an NVIDIA GPU (in tests also on a CPU, interpreted)."""
    from kernels.triton.backend import TritonBackend  # needs Triton, which a machine without a GPU may lack

    return TritonBackend(device)
