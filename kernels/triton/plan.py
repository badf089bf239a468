"""A step's plan on the device: positions, block tables, and the attention kernel's items, in one upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from kernels.torch.attention import SpanTable
from kernels.triton.sharing import Sharing, find_sharing
from kernels.triton.work import Ints, Runs, Work, plan_work


@dataclass(frozen=True, slots=True)
class Items:
    """Items of one kernel on the device: `count` [1] of them are real, `grid` programs a head are started."""

    items: Tensor
    count: Tensor
    grid: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step, as all layers need it. Tensors are int32 but for the scratch."""

    positions: Tensor
    """[T]."""
    rows: Tensor
    """[T]: each token's row of `tables`."""
    tables: Tensor
    """[rows, blocks]."""
    narrow: Items
    wide: Items
    merges: Items
    entries: Tensor
    parts: Tensor
    """float32 [P, H, D]: scratch."""
    lse: Tensor
    """float32 [P, H]: scratch."""
    heads: int
    kv_heads: int
    block_size: int
    shared: bool
    """One token of each sequence, and blocks that several of them have in common."""


@cache
def multiprocessors(device: torch.device | str) -> int:
    """Of a GPU; of anything else (Triton's interpreter) some number."""
    device = torch.device(device)
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16


@cache
def shared_memory(device: torch.device | str) -> int:
    """Bytes that a program may have on a GPU: 99 KiB on cards for desktops, 163 KiB or more on others."""
    properties = torch.cuda.get_device_properties(torch.device(device))
    # torch's type stubs do not know it
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_multiprocessor))


@cache
def has_little_room(device: torch.device) -> bool:
    """Whether it is a card on which a program has but 99 KiB of shared memory."""
    return device.type == "cuda" and shared_memory(device) < 160 << 10


def program_target(device: str) -> int:
    """Programs of the narrow attention kernel that run at a time: four on each multiprocessor."""
    return 4 * multiprocessors(device)


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
    counts = np.array([span.count for span in spans], dtype=np.int32)
    starts = np.array([span.start for span in spans], dtype=np.int32)
    tables = np.zeros((len(spans), max(len(span.table) for span in spans)), dtype=np.int32)
    for row, span in enumerate(spans):
        tables[row, : len(span.table)] = span.table
    rows = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
    firsts = (np.cumsum(counts) - counts).astype(np.int32)
    positions = np.arange(counts.sum(), dtype=np.int32) - firsts[rows] + starts[rows]
    runs = Runs(
        firsts, counts, np.arange(len(spans), dtype=np.int32), np.zeros_like(starts), starts + counts, counts > 1
    )
    work = plan_work(runs, len(positions), group=heads // kv_heads, kv_heads=kv_heads, programs=program_target(device))
    return upload_plan(
        positions, rows, torch.from_numpy(tables).to(device), work, heads, kv_heads, head_dim, block_size, shared=False
    )


def decode_runs(sharing: Sharing, rows: Ints, lengths: Ints) -> Runs:
    """One token of each sequence, in the order of `sharing`: what it has to itself, and what several share.

    `rows` are the sequences' rows of the block tables, `lengths` their tokens, the newest included; both in that order.
    """
    own = Runs(
        np.arange(len(rows), dtype=np.int32),
        np.ones(len(rows), dtype=np.int32),
        rows,
        sharing.own,
        lengths,
        np.zeros(len(rows), dtype=bool),
    )
    shared = [(first, count, int(rows[first]), start, stop, False) for first, count, start, stop in sharing.nodes]
    return own.joined(Runs.of(shared)) if shared else own


def plan_decode(
    lengths: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    device: str,
) -> tuple[AttentionPlan, Ints]:
    """A plan for one token of each sequence, which reads shared blocks once; and the order it wants them in.

    `lengths` are the sequences' tokens, the newest included.
    """
    tables = np.zeros((len(lengths), max(map(len, block_tables))), dtype=np.int32)
    for row, table in enumerate(block_tables):
        tables[row, : len(table)] = table
    total = np.array(lengths, dtype=np.int32)
    sharing = find_sharing(tables, np.arange(len(total), dtype=np.int32), (total - 1) // block_size, block_size)
    rows, total = sharing.order.astype(np.int32), total[sharing.order]
    work = plan_work(
        decode_runs(sharing, rows, total),
        len(rows),
        group=heads // kv_heads,
        kv_heads=kv_heads,
        programs=program_target(device),
    )
    on_device = torch.from_numpy(tables).to(device)
    shared = bool(sharing.nodes)
    return upload_plan(total - 1, rows, on_device, work, heads, kv_heads, head_dim, block_size, shared=shared), rows


def upload_plan(
    positions: np.ndarray,
    rows: np.ndarray,
    tables: Tensor,
    work: Work,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    *,
    shared: bool,
) -> AttentionPlan:
    """A plan with memory of its own, for a step that runs once."""
    device = tables.device
    fields = [
        positions.astype(np.int32),
        rows.astype(np.int32),
        work.narrow.reshape(-1),
        work.wide.reshape(-1),
        work.merges.reshape(-1),
        work.entries,
        np.array([len(work.narrow), len(work.wide), len(work.merges)], dtype=np.int32),
    ]
    host = torch.from_numpy(np.concatenate(fields))
    if device.type == "cuda":
        host = host.pin_memory()
    pieces = host.to(device, non_blocking=True).split([len(field) for field in fields])
    narrow, wide, merges = (
        Items(pieces[2 + i], pieces[6][i : i + 1], len(items))
        for i, items in enumerate((work.narrow, work.wide, work.merges))
    )
    return AttentionPlan(
        positions=pieces[0],
        rows=pieces[1],
        tables=tables,
        narrow=narrow,
        wide=wide,
        merges=merges,
        entries=pieces[5],
        parts=torch.empty(work.parts, heads, head_dim, dtype=torch.float32, device=device),
        lse=torch.empty(work.parts, heads, dtype=torch.float32, device=device),
        heads=heads,
        kv_heads=kv_heads,
        block_size=block_size,
        shared=shared,
    )
