"""Paged attention: keys and values are written to blocks, gathered through block tables, and attended to.

The pool of a layer is read as rows of B * D numbers, one row per (block, key or value, head), so that one
`index_select` lays the keys and values of many sequences out as [2, sequences, K, length, D], ready for a batched
product without a further copy. The indices are made once per step; a layer costs a handful of calls per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kernels.torch.elementwise import rms_norm

_GROUP_BYTES = 4 << 20
"""Most gathered bytes of a decode group: what stays in a CPU's cache between the gather and the products."""
_GROUP_PADDING = 512
"""Most padding slots of a decode group; a further group costs about as much as reading these."""


@dataclass(frozen=True, slots=True)
class SpanTable:
    """Tokens start .. start + count - 1 of a sequence, and its block table."""

    start: int
    count: int
    table: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one token each, attended to in one batched product."""

    tokens: Tensor
    """Places of the queries among the step's tokens."""
    size: int
    rows: Tensor
    """Pool rows to gather, in the order [2, size, K, blocks]."""
    length: int
    """Slots attended to, of the blocks * B gathered ones."""
    bias: Tensor | None
    """[size * K, 1, length]: 0 where a sequence has a token, -inf past its end; None when all are `length` long."""
    past_end: Tensor | None
    """Rows of D numbers, among the gathered, that lie past the end of their sequence."""


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Several tokens of one sequence, which attend to its earlier tokens and, causally, to each other."""

    first: int
    count: int
    rows: Tensor
    """Pool rows to gather, in the order [2, K, blocks]."""
    length: int
    mask: Tensor | None
    """[count, length], added to the scores; None when the span starts its sequence: plainly causal."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step, as all layers need it."""

    positions: Tensor
    """int64 [T]."""
    write_rows: Tensor
    """Rows of D numbers in the pool that receive keys and values, in the order [T, 2, K]."""
    kv_heads: int
    decodes: list[DecodeGroup] = field(default_factory=list)
    prefills: list[PrefillSpan] = field(default_factory=list)
    scratch: Tensor = field(default_factory=lambda: torch.empty(0))
    """Receives what is gathered, layer after layer."""


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
    tables = [np.asarray(span.table[: -(-(span.start + span.count) // block_size)], dtype=np.int64) for span in spans]
    firsts = np.cumsum([0, *(span.count for span in spans)])
    positions = np.concatenate([np.arange(span.start, span.start + span.count) for span in spans])
    blocks = np.concatenate(
        [table[np.arange(s.start, s.start + s.count) // block_size] for s, table in zip(spans, tables, strict=True)]
    )
    halves = blocks[:, None] * 2 + np.arange(2)
    write_rows = (halves[:, :, None] * kv_heads + np.arange(kv_heads)) * block_size + (positions % block_size)[
        :, None, None
    ]

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def gather_rows(table: np.ndarray) -> np.ndarray:
        """Block tables [..., blocks] -> pool rows [2, ..., K, blocks]."""
        halves = np.stack([table * 2, table * 2 + 1])
        return halves[..., None, :] * kv_heads + np.arange(kv_heads)[:, None]

    def decode_group(members: list[int]) -> DecodeGroup:
        width = max(len(tables[i]) for i in members)
        padded = np.zeros((len(members), width), dtype=np.int64)
        for row, i in enumerate(members):
            padded[row, : len(tables[i])] = tables[i]
        lengths = np.array([spans[i].start + 1 for i in members])
        longest = int(lengths.max())
        bias = past_end = None
        if int(lengths.min()) < longest:
            outside = np.arange(longest) >= lengths[:, None]
            rows = np.where(outside, -np.inf, 0.0).astype(np.float32)[:, None]
            bias = tensor(rows.repeat(kv_heads, axis=0)).to(dtype)
            sequence, slot = np.nonzero(outside)
            runs = np.arange(2)[:, None] * len(members) + sequence
            runs = runs[:, None, :] * kv_heads + np.arange(kv_heads)[:, None]
            past_end = tensor((runs * (width * block_size) + slot).reshape(-1))
        return DecodeGroup(
            tokens=tensor(firsts[members]),
            size=len(members),
            rows=tensor(gather_rows(padded).reshape(-1)),
            length=longest,
            bias=bias,
            past_end=past_end,
        )

    def prefill_span(i: int) -> PrefillSpan:
        start, count = spans[i].start, spans[i].count
        mask = None
        if start:
            mask = torch.full((count, start + count), -torch.inf, dtype=dtype, device=device).triu_(start + 1)
        return PrefillSpan(int(firsts[i]), count, tensor(gather_rows(tables[i]).reshape(-1)), start + count, mask)

    row_bytes = 2 * kv_heads * block_size * head_dim * dtype.itemsize
    lengths = {i: span.start + 1 for i, span in enumerate(spans) if span.count == 1}
    decodes = [decode_group(members) for members in _groups(lengths, block_size, row_bytes)]
    prefills = [prefill_span(i) for i, span in enumerate(spans) if span.count > 1]
    most_rows = max(len(rows) for rows in [*(d.rows for d in decodes), *(p.rows for p in prefills)])
    return AttentionPlan(
        positions=tensor(positions),
        write_rows=tensor(write_rows.reshape(-1)),
        kv_heads=kv_heads,
        decodes=decodes,
        prefills=prefills,
        scratch=torch.empty(most_rows, block_size * head_dim, dtype=dtype, device=device),
    )


def _groups(lengths: dict[int, int], block_size: int, block_bytes: int) -> list[list[int]]:
    """Sequences (place: length) in groups of similar length, neither too much padding nor too much memory in one."""
    groups: list[list[int]] = []
    width = padding = 0
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        blocks = -(-lengths[i] // block_size)
        padding += (width - blocks) * block_size
        if groups and padding <= _GROUP_PADDING and (len(groups[-1]) + 1) * width * block_bytes <= _GROUP_BYTES:
            groups[-1].append(i)
        else:
            groups.append([i])
            width, padding = blocks, 0
    return groups


def rope_and_cache_kv(
    qkv: Tensor,
    heads: int,
    angles: tuple[Tensor, Tensor] | None,
    kv: Tensor,
    plan: AttentionPlan,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    head_dim = qkv.shape[-1]
    if norms is not None:
        q_norm, k_norm, eps = norms
        queries, keys = qkv[:, :heads], qkv[:, heads : heads + plan.kv_heads]
        queries.copy_(rms_norm(queries, q_norm, eps))
        keys.copy_(rms_norm(keys, k_norm, eps))
    if angles is not None:
        cos, sin = angles
        rotated = qkv[:, : heads + plan.kv_heads]
        swapped = rotated.roll(head_dim // 2, dims=-1)
        rotated.mul_(cos).addcmul_(swapped, sin)
    kv.view(-1, head_dim).index_copy_(0, plan.write_rows, qkv[:, heads:].reshape(-1, head_dim))
    return qkv[:, :heads]


def paged_attention(q: Tensor, kv: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    pool = kv.view(-1, kv.shape[-2] * kv.shape[-1])
    for group in plan.decodes:
        out.index_copy_(0, group.tokens, _attend_decodes(q.index_select(0, group.tokens), pool, plan, group, scale))
    for span in plan.prefills:
        tokens = slice(span.first, span.first + span.count)
        out[tokens] = _attend_prefill(q[tokens], pool, plan, span, scale)
    return out


def _gather(pool: Tensor, rows: Tensor, plan: AttentionPlan) -> Tensor:
    return torch.index_select(pool, 0, rows, out=plan.scratch[: len(rows)])


def _attend_decodes(q: Tensor, pool: Tensor, plan: AttentionPlan, group: DecodeGroup, scale: float) -> Tensor:
    """q [size, H, D] -> the same; the query heads of a key/value head are the rows of one product."""
    size, heads, head_dim = q.shape
    gathered = _gather(pool, group.rows, plan).view(-1, head_dim)
    if group.past_end is not None:
        gathered.index_fill_(0, group.past_end, 0)  # a NaN there would survive both the bias and a weight of 0
    keys, values = gathered.view(2, size * plan.kv_heads, -1, head_dim)[:, :, : group.length]
    q = q.reshape(size * plan.kv_heads, heads // plan.kv_heads, head_dim)
    if group.bias is None:
        scores = torch.bmm(q * scale, keys.transpose(1, 2))
    else:
        scores = torch.baddbmm(group.bias, q, keys.transpose(1, 2), alpha=scale)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return torch.bmm(weights, values).view(size, heads, head_dim)


def _attend_prefill(q: Tensor, pool: Tensor, plan: AttentionPlan, span: PrefillSpan, scale: float) -> Tensor:
    """q [count, H, D] -> the same."""
    head_dim = q.shape[-1]
    gathered = _gather(pool, span.rows, plan).view(2, 1, plan.kv_heads, -1, head_dim)
    keys, values = gathered[:, :, :, : span.length]
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys,
        values,
        attn_mask=span.mask,
        is_causal=span.mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def copy_blocks(kv: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    if pairs:
        sources, destinations = torch.tensor(pairs, device=kv.device).unbind(1)
        kv.index_copy_(0, destinations, kv.index_select(0, sources))


def move_blocks(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    if pairs:
        here, there = torch.tensor(pairs).unbind(1)
        moved = source.index_select(0, here.to(source.device)).to(destination.device)
        destination.index_copy_(0, there.to(destination.device), moved)
