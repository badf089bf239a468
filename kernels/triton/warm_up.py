"""Every kernel variant that a model can need, made ready before its first request.

What decides the variant is listed here once: kinds of attention work, few rows or many, and how tokens are drawn.
Everything else is the same in all steps of a model: see kernels/triton/compilations.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.triton.compilations import compile_together
from kernels.triton.draw import DeviceRows, draw
from kernels.triton.launch import FEW_ROWS, embed, patch, start_copy, zeros
from kernels.triton.plan import AttentionPlan, Items


@dataclass(frozen=True, slots=True)
class Model:
    """What the kernels of a model depend on."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    layers: int
    dtype: torch.dtype
    embedding: Tensor
    """[vocab, hidden]."""
    forward: Callable[[Tensor, Sequence[Tensor], AttentionPlan], Tensor]
    """Of the residual [T, hidden], in place, through all layers, whose pools follow."""
    logits: Callable[[Tensor], Tensor]
    """[R, vocab] of rows of hidden states [R, hidden]."""


def compile_all(model: Model, tell: Callable[[str, int, int], None] | None = None) -> None:
    """Compiles what `model` can need, several kernels at a time. `tell`: see `compile_together`."""
    compile_together(lambda: launch_all(model), tell)


def launch_all(model: Model) -> None:
    """Starts every variant once, on small tensors of its own, whose content is undefined. Nothing is attended to."""
    device, (vocab, hidden) = model.embedding.device, model.embedding.shape
    shape = (2, 2, model.kv_heads, model.block_size, model.head_dim)
    kv = [zeros(shape, model.dtype, str(device))] * model.layers

    def words(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=torch.int32, device=device)

    for tokens in (1, FEW_ROWS + 1):
        for plan in _plans(model, tokens):
            model.forward(embed(words(tokens), words(1), model.embedding, model.dtype), kv, plan)
        model.logits(torch.zeros(tokens, hidden, dtype=model.dtype, device=device))
    patch(words(1, 1), words(1, 3), words(1), 1)
    start_copy(kv[0], kv[0], words(1, 2))
    for dtype, positions, keep in itertools.product(
        {model.dtype, torch.float32}, (torch.int32, torch.int64), (False, True)
    ):
        logits = torch.zeros(1, vocab, dtype=dtype, device=device)
        newest = words(1) if keep else None
        draw(logits, _rows(device, positions), words(1), newest, newest)


def _plans(model: Model, tokens: int) -> Iterator[AttentionPlan]:
    """Of no work: decode steps and prompts, whole and in parts, alone and together, with and without shared blocks."""
    device = model.embedding.device
    numbers = torch.zeros(64, dtype=torch.int32, device=device)
    none, one = (Items(numbers, numbers[:1], grid) for grid in (0, 1))
    for (narrow, wide), shared in itertools.product(((one, none), (none, one), (one, one)), (False, True)):
        yield AttentionPlan(
            positions=numbers[:tokens],
            rows=numbers[:tokens],
            tables=numbers[:1].view(1, 1),
            narrow=narrow,
            wide=wide,
            merges=one,
            entries=numbers,
            parts=torch.empty(1, model.heads, model.head_dim, dtype=torch.float32, device=device),
            lse=torch.empty(1, model.heads, dtype=torch.float32, device=device),
            heads=model.heads,
            kv_heads=model.kv_heads,
            block_size=model.block_size,
            shared=shared,
        )


def _rows(device: torch.device, positions: torch.dtype) -> DeviceRows:
    def column(dtype: torch.dtype) -> Tensor:
        return torch.zeros(1, dtype=dtype, device=device)

    word, number = column(torch.int32), column(torch.float32)
    return DeviceRows(number, word, number, number, column(torch.int64), column(positions))
