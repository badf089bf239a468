"""Paged scenes on the GPU: sequences with their keys and values in scattered blocks, and attention in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.backend import SpanTable


@dataclass
class Scene:
    """`qkv` are the step's new tokens; `keys` and `values` [K, length, D] of each sequence, new tokens included."""

    spans: list[SpanTable]
    qkv: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    kv: Tensor
    heads: int


def make_scene(
    spans: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    num_blocks: int = 0,
    seed: int = 0,
) -> Scene:
    """`spans` are (start, count); slots that no sequence wrote hold NaN; blocks come from all over the pool."""
    generator = torch.Generator("cuda").manual_seed(seed)
    needed = [-(-(start + count) // block_size) for start, count in spans]
    num_blocks = max(num_blocks, sum(needed) + 3)
    order = (torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    kv = torch.full((num_blocks + 1, 2, kv_heads, block_size, head_dim), float("nan"), dtype=dtype, device="cuda")
    kv[0] = 0
    tables, fresh, keys, values = [], [], [], []
    for (start, count), blocks in zip(spans, needed, strict=True):
        table = [order.pop() for _ in range(blocks)]
        k, v = torch.randn(2, kv_heads, start + count, head_dim, generator=generator, device="cuda").to(dtype)
        for half, content in enumerate((k, v)):
            padded = torch.full((kv_heads, blocks * block_size, head_dim), float("nan"), dtype=dtype, device="cuda")
            padded[:, :start] = content[:, :start]
            kv[torch.tensor(table, device="cuda"), half] = padded.view(
                kv_heads, blocks, block_size, head_dim
            ).transpose(0, 1)
        q = torch.randn(count, heads, head_dim, generator=generator, device="cuda").to(dtype)
        fresh.append(torch.cat((q, k[:, start:].transpose(0, 1), v[:, start:].transpose(0, 1)), dim=1))
        tables.append(SpanTable(start, count, table))
        keys.append(k)
        values.append(v)
    return Scene(tables, torch.cat(fresh), keys, values, kv, heads)


def plain_attention(scene: Scene, scale: float, dtype: torch.dtype, window: int = 0, soft_cap: float = 0.0) -> Tensor:
    """Each span by itself, every step of the formula in `dtype`."""
    out, first = [], 0
    for span, k, v in zip(scene.spans, scene.keys, scene.values, strict=True):
        q = scene.qkv[first : first + span.count, : scene.heads].transpose(0, 1).to(dtype)
        group = scene.heads // len(k)
        k, v = (x.to(dtype).repeat_interleave(group, 0) for x in (k, v))
        scores = q @ k.transpose(1, 2) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        at = torch.arange(k.shape[1], device="cuda")
        mine = span.start + torch.arange(span.count, device="cuda")[:, None]
        hidden = at > mine
        if window:
            hidden |= at <= mine - window
        scores = scores.masked_fill(hidden, -torch.inf)
        out.append((scores.softmax(-1) @ v).transpose(0, 1))
        first += span.count
    return torch.cat(out)
