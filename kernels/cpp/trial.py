"""What a library computes is compared with torch before anything relies on it: compilers have faults of their own.

Every operation runs, in every form of weights and on a pool of either dtype, with sizes that use up whole vectors and
leave some over. It takes some 50 ms of one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpp.attention import paged_attention, plan_attention, rope_and_cache_kv
from kernels.cpp.layers import LayerWeights, fuse_layers
from kernels.cpp.library import FORMS, Form, Library, trying
from kernels.cpp.linear import add_linear, linear, norm_swiglu, pack_linear
from kernels.torch.attention import SpanTable

_EPS = 1e-5
_SPANS = ((300, 1), (0, 7), (30, 40), (5, 1))
"""(start, count): single tokens over one and over two chunks, prompts on both sides of a tile's border."""
_BLOCK = 16

Finding = tuple[str, float, float]
"""What was computed, its largest error, and the error allowed."""


def problem(library: Library) -> str | None:
    """What the library computes wrongly, in words; None for nothing."""
    with trying(library), torch.inference_mode():
        for what, error, allowed in (*_products(), *_attentions(), *_fused()):
            if not error <= allowed:  # so is what is no number
                return f"{what} is off by {error:.2g}, where {allowed:.2g} is allowed"
    return None


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _on_grid(outputs: int, inputs: int) -> Tensor:
    """A weight that every form but int8 holds exactly."""
    return ((torch.arange(outputs * inputs) * 7 % 16 - 5) / 16).reshape(outputs, inputs)


def _exact(rows: int, inputs: int) -> Tensor:
    """Inputs that lose nothing where they are rounded to 8 bits: 127 steps to the largest of each 32."""
    x = torch.round(127 * torch.cos(torch.arange(rows * inputs, dtype=torch.float32))).reshape(rows, inputs)
    x[:, ::32] = 127
    return x / 127


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max())


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, _EPS)


# -- products ----------------------------------------------------------------------------------------------------------


def _products() -> Iterator[Finding]:
    weight, bias = _on_grid(40, 70), _random(40, seed=0)
    tall, norm = _on_grid(128, 96), _random(96, seed=1)
    for form in FORMS:
        exact, rounded = {"int8": (0.1, 0.06), "int4": (1e-3, 0.06)}.get(form, (1e-3, 1e-4))
        packed, gates = pack_linear(weight, bias, form), pack_linear(tall, None, form)
        for rows in (1, 5, 40):
            x = _exact(rows, 70)
            wanted = functional.linear(x, weight, bias)
            yield f"a product of {rows} rows with {form} weights", _error(linear(x, packed), wanted), exact
            sums = torch.ones(rows, 40)
            add_linear(x, packed, sums)
            yield f"a sum of {rows} rows with {form} weights", _error(sums, wanted + 1), exact
            x = _random(rows, 96, seed=2)
            gate, up = functional.linear(_rms_norm(x, norm), tall).chunk(2, 1)
            wanted = functional.silu(gate) * up
            scale = float(wanted.abs().max())
            error = _error(norm_swiglu(x, norm, _EPS, gates), wanted) / scale
            yield f"a gated product of {rows} rows with {form} weights", error, rounded


# -- attention ---------------------------------------------------------------------------------------------------------


class _Step:
    """Tokens of several sequences, in blocks that nothing else has written; NaN stands where no token does."""

    def __init__(self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        needed = [-(-(start + count) // _BLOCK) for start, count in _SPANS]
        order = list(range(sum(needed), 0, -1))
        self.spans = [
            SpanTable(start, count, [order.pop() for _ in range(blocks)])
            for (start, count), blocks in zip(_SPANS, needed, strict=True)
        ]
        self.kv = torch.full((sum(needed) + 1, 2, kv_heads, _BLOCK, dim), float("nan"), dtype=dtype)
        self.plan = plan_attention(self.spans, heads=heads, kv_heads=kv_heads, head_dim=dim, block_size=_BLOCK)
        for number, span in enumerate(self.spans):
            past = _random(2, kv_heads, span.start, dim, seed=number).to(dtype)
            slots = torch.arange(span.start)
            self.kv[torch.tensor(span.table)[slots // _BLOCK], :, :, slots % _BLOCK] = past.permute(2, 0, 1, 3)

    def cached(self, span: SpanTable) -> Tensor:
        """Keys and values of a sequence, float32 [2, kv_heads, slots, dim]."""
        whole = self.kv[span.table].permute(1, 2, 0, 3, 4).reshape(2, self.kv_heads, -1, self.dim)
        return whole[:, :, : span.start + span.count].float()

    def attended(self, q: Tensor, scale: float) -> Tensor:
        """torch's attention of q [tokens, heads, dim] to what is in the pool."""
        parts, first = [], 0
        for span in self.spans:
            keys, values = self.cached(span).repeat_interleave(self.heads // self.kv_heads, 1)
            places = span.start + torch.arange(span.count)
            seen = torch.arange(keys.shape[1]) <= places[:, None]
            rows = q[first : first + span.count].transpose(0, 1)
            out = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=seen, scale=scale)
            parts.append(out.transpose(0, 1))
            first += span.count
        return torch.cat(parts)

    def rotated(self, x: Tensor, inv_freq: Tensor) -> Tensor:
        """x [tokens, heads, dim]."""
        angles = self.plan.positions[:, None, None] * inv_freq
        low, high = x.chunk(2, 2)
        return torch.cat((low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()), 2)

    def written(self) -> Tensor:
        """The keys and values that this step has put into the pool, float32 [tokens, 2 * kv_heads, dim]."""
        parts = [self.cached(span)[:, :, span.start :].permute(2, 0, 1, 3) for span in self.spans]
        return torch.cat(parts).flatten(1, 2)


def _attentions() -> Iterator[Finding]:
    heads, kv_heads = 6, 2
    for dtype, rounding, attending in ((torch.float32, 1e-4, 1e-4), (torch.bfloat16, 0.04, 0.03)):
        for dim in (20, 64):
            step = _Step(heads, kv_heads, dim, dtype)
            inv_freq = 10_000.0 ** -(torch.arange(0, dim, 2) / dim)
            qkv = _random(len(step.plan.owners), heads + 2 * kv_heads, dim, seed=3)
            q_norm, k_norm = _random(2, dim, seed=4)
            angles = step.plan.positions[:, None] * inv_freq
            doubled = torch.cat((angles, angles), 1)
            q = step.rotated(_rms_norm(qkv[:, :heads], q_norm), inv_freq)
            k = step.rotated(_rms_norm(qkv[:, heads : heads + kv_heads], k_norm), inv_freq)
            new = torch.cat((k, qkv[:, heads + kv_heads :]), 1)
            pairs = (doubled.cos().contiguous(), doubled.sin().contiguous())
            norms = (q_norm.contiguous(), k_norm.contiguous(), _EPS)
            got = rope_and_cache_kv(qkv.clone(), heads, pairs, step.kv, step.plan, norms)
            name = f"heads of {dim} in a {str(dtype).removeprefix('torch.')} pool"
            yield f"the rotation of {name}", _error(got, q), 1e-4
            yield f"the write of {name}", _error(step.written(), new), rounding
            out = paged_attention(q.contiguous(), step.kv, step.plan, dim**-0.5)
            yield f"attention with {name}", _error(out, step.attended(q, dim**-0.5)), attending


# -- fused layers ------------------------------------------------------------------------------------------------------


def _fused() -> Iterator[Finding]:
    heads, kv_heads, dim, hidden, intermediate = 4, 2, 16, 64, 96
    inv_freq = 10_000.0 ** -(torch.arange(0, dim, 2) / dim)
    shapes = ((heads + 2 * kv_heads) * dim, hidden), (hidden, heads * dim), (2 * intermediate, hidden), (hidden, 96)
    weights = [_on_grid(*shape) / 4 for shape in shapes]
    norms = [*_random(2, hidden, seed=5), *_random(2, dim, seed=6)]
    norms = [norm.contiguous() for norm in norms]
    for form, dtype in ((form, dtype) for form in FORMS for dtype in (torch.float32, torch.bfloat16)):
        step = _Step(heads, kv_heads, dim, dtype)
        x = _random(len(step.plan.owners), hidden, seed=7)
        fused = fuse_layers(
            [_layer(weights, norms, form)], heads=heads, kv_heads=kv_heads, head_dim=dim, eps=_EPS, inv_freq=inv_freq
        )
        got = x.clone()
        if fused is not None:
            fused.run(got, [step.kv], step.plan)
        wanted = _plain_layer(step, x, weights, norms, inv_freq)
        allowed = 0.02 if dtype == torch.bfloat16 or form in ("int8", "int4") else 1e-4
        name = f"a layer with {form} weights and a {str(dtype).removeprefix('torch.')} pool"
        yield name, _error(got, wanted) / float(wanted.abs().max()), allowed


def _layer(weights: list[Tensor], norms: list[Tensor], form: Form) -> LayerWeights:
    qkv, out, gate_up, down = (pack_linear(weight, None, form) for weight in weights)
    input_norm, mlp_norm, q_norm, k_norm = norms
    return SimpleNamespace(
        input_norm=input_norm, mlp_norm=mlp_norm, q_norm=q_norm, k_norm=k_norm, rotates=True,
        qkv=qkv, out=out, gate_up=gate_up, down=down,
    )  # fmt: skip


def _plain_layer(step: _Step, x: Tensor, weights: list[Tensor], norms: list[Tensor], inv_freq: Tensor) -> Tensor:
    """torch's, after the fused layers have written the step's keys and values to the pool."""
    qkv_weight, out_weight, gate_up_weight, down_weight = weights
    input_norm, mlp_norm, q_norm, _ = norms
    qkv = functional.linear(_rms_norm(x, input_norm), qkv_weight).unflatten(1, (-1, step.dim))
    q = step.rotated(_rms_norm(qkv[:, : step.heads], q_norm), inv_freq)
    attended = step.attended(q, step.dim**-0.5).flatten(1)
    x = x + functional.linear(attended, out_weight)
    gate, up = functional.linear(_rms_norm(x, mlp_norm), gate_up_weight).chunk(2, 1)
    return x + functional.linear(functional.silu(gate) * up, down_weight)


def main(path: str) -> int:
    """Tries the library at `path`, and prints what is wrong with it; for a process of its own (build.py)."""
    found = problem(Library(Path(path)))
    if found is not None:
        print(found)
    return 0 if found is None else 1
