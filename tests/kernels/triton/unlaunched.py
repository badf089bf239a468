"""Triton without a GPU and without its interpreter: everything up to the launch is real. Run as a program by its tests.

`python -m tests.kernels.triton.unlaunched steps DTYPE HEADS KV_HEADS HEAD_DIM` has every variant of a small model made
ready, goes through steps of many sizes, and prints what was made ready after that. `... hooks` compiles one kernel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

import kernels.triton as triton_kernels
from kernels.backend import SpanTable
from kernels.sampling import Bias, SamplingRows
from kernels.triton import launch, warm_up
from kernels.triton.compilations import KERNELS, compilations, compile_together
from kernels.triton.draw import DeviceRows, draw
from kernels.triton.plan import AttentionPlan, plan_decode

BLOCK, HIDDEN, VOCAB, LAYERS = 16, 96, 5003, 2


class _Driver:
    """What Triton asks of a GPU before it launches."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class _Compiled:
    """In place of a compiled kernel: starting it does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None:
        return None

    def run(self, *_: object) -> None:
        return None


def without_compiler() -> None:
    for made in KERNELS:
        made.device_caches[0]  # sets `compile`
        made.compile = lambda *_, **__: _Compiled()


def small_model(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> warm_up.Model:
    def linear(outputs: int, inputs: int) -> Any:
        return triton_kernels.pack_linear(torch.zeros(outputs, inputs, dtype=dtype), torch.zeros(outputs, dtype=dtype))

    size = heads * head_dim
    qkv, out = linear(size + 2 * kv_heads * head_dim, HIDDEN), linear(HIDDEN, size)
    gate_up, down, head = linear(2 * 160, HIDDEN), linear(HIDDEN, 160), linear(VOCAB, HIDDEN)
    norm, head_norm, inv_freq = (
        torch.ones(HIDDEN, dtype=dtype),
        torch.ones(head_dim, dtype=dtype),
        torch.ones(head_dim // 2),
    )

    def forward(residual: Tensor, kv: Sequence[Tensor], plan: AttentionPlan) -> Tensor:
        angles = triton_kernels.rope_angles(plan.positions, inv_freq, 1.0, dtype)
        for number, pool in enumerate(kv):
            x = triton_kernels.norm_linear(residual, norm, 1e-6, qkv).view(len(residual), -1, head_dim)
            turned = angles if number % 2 else None
            q = triton_kernels.rope_and_cache_kv(x, heads, turned, pool, plan, (head_norm, head_norm, 1e-6))
            triton_kernels.add_linear(triton_kernels.paged_attention(q, pool, plan, 0.1).flatten(1), out, residual)
            triton_kernels.add_linear(triton_kernels.norm_swiglu(residual, norm, 1e-6, gate_up), down, residual)
        return residual

    return warm_up.Model(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=BLOCK,
        layers=LAYERS,
        dtype=dtype,
        embedding=torch.zeros(VOCAB, HIDDEN, dtype=dtype),
        forward=forward,
        logits=lambda hidden: triton_kernels.norm_linear(hidden, norm, 1e-6, head),
    )


def go_through_steps(model: warm_up.Model) -> None:
    """Prompts, decode steps and both, alone and in crowds, with tables of many widths; every way to draw a token."""
    shapes = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim, "block_size": BLOCK}
    kv = [torch.zeros(400, 2, model.kv_heads, BLOCK, model.head_dim, dtype=model.dtype) for _ in range(LAYERS)]
    crowds: list[list[tuple[int, int]]] = [[(0, n)] for n in (1, 2, 3, 15, 16, 17, 32, 33, 4096)]
    crowds += [[(n, 1)] * count for n in (1, 15, 16, 31, 900, 5000) for count in (1, 2, 3, 16, 17, 31, 64)]
    crowds += [
        [(40, 1)] * decodes + [(start, prompt)] for decodes in (1, 7, 16) for start, prompt in ((0, 5), (33, 130))
    ]
    for spans in crowds:
        tables = [SpanTable(start, count, [1] * (-(-(start + count) // BLOCK))) for start, count in spans]
        step(model, kv, triton_kernels.plan_attention(tables, dtype=model.dtype, device="cpu", **shapes))
    for count in (2, 5, 16, 30):
        plan, _ = plan_decode([1500 + i for i in range(count)], [list(range(95))] * count, device="cpu", **shapes)
        step(model, kv, plan)
    for count in (1, 2, 16, 17):
        buffer = torch.zeros(3 + 5 * count, dtype=torch.int32)  # views at any address, as in a step's upload
        launch.patch(
            torch.zeros(9, 7 + count, dtype=torch.int32), buffer[3:][: 3 * count].view(-1, 3), buffer[1:2], count
        )
        launch.start_copy(kv[0], kv[1], buffer[1:][: 2 * count].view(-1, 2))
        draw_tokens(model, count)


def step(model: warm_up.Model, kv: list[Tensor], plan: AttentionPlan) -> None:
    tokens = len(plan.positions)
    buffer = torch.zeros(tokens + 3, dtype=torch.int32)
    hidden = model.forward(launch.embed(buffer[3:], buffer[1:], model.embedding, model.dtype), kv, plan)
    model.logits(hidden[: max(1, tokens // 3)])
    model.logits(hidden[tokens // 2 :][:1])


def draw_tokens(model: warm_up.Model, count: int) -> None:
    logits = torch.zeros(count, VOCAB, dtype=model.dtype)
    words, numbers = torch.zeros(count + 5, dtype=torch.int32), torch.zeros(count + 5)
    seeds = torch.zeros(count, dtype=torch.int64)
    for at in range(4):
        word, number = words[at:][:count], numbers[at:][:count]
        draw(logits, DeviceRows(number, word, number, number, seeds, word), word, words, word)
    plain = SamplingRows(*(np.ones(count, t) for t in ["f4", "i4", "f4", "f4", "i8", "i8"]))
    bias = Bias(np.arange(count + 1, dtype=np.int32), np.zeros(count, np.int32), np.ones(count, np.float32))
    for rows in (plain, SamplingRows(*(np.ones(count, t) for t in ["f4", "i4", "f4", "f4", "i8", "i8"]), bias=bias)):
        triton_kernels.sample(logits, rows)


def steps(dtype: str, *sizes: str) -> dict[str, Any]:
    without_compiler()
    model = small_model(getattr(torch, dtype), *map(int, sizes))
    told: list[tuple[str, int, int]] = []
    warm_up.compile_all(model, lambda *what: told.append(what))
    before, later = compilations.variants, []
    compilations.mark()
    with compilations.telling(later.append):
        go_through_steps(model)
    other = SimpleNamespace(before=compilations.since_mark)
    triton_kernels.silu_and_mul(torch.zeros(3, 2 * 160, dtype=torch.float64))
    return {
        "made ready": before,
        "told": told,
        "later": later,
        "since ready": other.before,
        "after a float64": compilations.since_mark,
    }


def hooks() -> dict[str, Any]:
    told: list[Any] = []
    x = torch.zeros(3, 64)
    for _ in range(2):
        compile_together(
            lambda: [triton_kernels.silu_and_mul(x), triton_kernels.silu_and_mul(x)], lambda *w: told.append(w)
        )
        for made in KERNELS:
            made.device_caches.clear()
    return {"variants": compilations.variants, "compiled": compilations.compiled, "told": told}


if __name__ == "__main__":
    triton.runtime.driver.set_active(_Driver())
    triton.compiler.CompiledKernel.run = property(lambda _: None)  # there is no GPU to bring it to
    compilations.watch()
    with torch.inference_mode():
        print(json.dumps(steps(*sys.argv[2:]) if sys.argv[1] == "steps" else hooks()))
