"""How the attention kernels are started: which of them a step needs, and with which tiles, warps and stages.

The settings were chosen on an H200, by `pagechat-bench kernels`; nothing is tuned while serving.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.triton.attention import attend_items, merge_parts
from kernels.triton.overlap import overlap
from kernels.triton.plan import AttentionPlan, Items, has_little_room, multiprocessors
from kernels.triton.work import WIDE_ROWS, narrow_rows


def paged_attention(
    q: Tensor, kv: Tensor, plan: AttentionPlan, scale: float, window: int = 0, soft_cap: float = 0.0
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    both = bool(plan.wide.grid and plan.narrow.grid)
    few = narrow_rows(plan.heads // plan.kv_heads)
    if plan.wide.grid:
        _attend(q, kv, plan, plan.wide, WIDE_ROWS, True, both, out, scale, window, soft_cap)
    if plan.narrow.grid:
        _attend(q, kv, plan, plan.narrow, few, False, both, out, scale, window, soft_cap)
    if plan.merges.grid:
        head_dim = q.shape[-1]
        merge_parts[(plan.merges.grid, plan.heads)](
            plan.parts,
            plan.lse,
            plan.merges.items,
            plan.merges.count,
            plan.entries,
            out,
            out.stride(0),
            HEADS=plan.heads,
            HEAD_DIM=head_dim,
            BLOCK_D=triton.next_power_of_2(head_dim),
            TILE=8,
            num_warps=1,
            **overlap(q),
        )
    return out


def _attend(
    q: Tensor,
    kv: Tensor,
    plan: AttentionPlan,
    items: Items,
    rows: int,
    wide: bool,
    both: bool,
    out: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
) -> None:
    """`both` kinds of items are in the step. The wide kernel is bound by arithmetic and the narrow one by memory: the
    first is given part of the room on each multiprocessor, and the second runs in what is left."""
    head_dim = q.shape[-1]
    tile, warps, stages, registers = _attend_settings(
        rows, wide, head_dim, q.dtype, plan.shared, has_little_room(q.device)
    )
    programs = items.grid * plan.kv_heads
    loop = both and wide
    if loop:
        programs = min(programs, multiprocessors(q.device) * (1 if plan.shared else 2))
    attend_items[(programs,)](
        q,
        kv,
        plan.tables,
        plan.positions,
        items.items,
        items.count,
        out,
        plan.parts,
        plan.lse,
        scale,
        q.stride(0),
        out.stride(0),
        plan.tables.stride(0),
        kv.stride(0),
        WINDOW=window,
        SOFT_CAP=soft_cap,
        GROUP=plan.heads // plan.kv_heads,
        KV_HEADS=plan.kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=plan.block_size,
        ROWS=rows,
        TILE=tile,
        PRECISION="ieee",
        LOOP=loop,
        BESIDE=both and not loop,
        num_warps=warps,
        num_stages=stages,
        maxnreg=registers,
        **overlap(q),
    )


def _attend_settings(
    rows: int, wide: bool, head_dim: int, dtype: torch.dtype, shared: bool, little_room: bool
) -> tuple[int, int, int, int | None]:
    """(keys a tile, warps, stages, most registers a thread). `little_room`: 99 KiB of shared memory a program.

    Page numbers are loaded a stage before the keys they lead to: of 3 or 4 stages the keys get one, which is filled
    and used in turn, of 5 they get two. Narrow programs make up for it by being many.
    """
    if dtype == torch.float32 and rows > 16:  # without tensor cores: what compiles within seconds
        return 16, 8, 2, None
    if dtype == torch.float32 or head_dim > 128:
        return (16 if wide and little_room else 32), 4, 2, None
    if not wide:
        warps = max(1, rows // 16)  # more than 16 only where more than 16 heads share a key/value head
        return (32, warps, 5, None) if shared else (64 if rows <= 32 else 32, min(8, 2 * warps), 3, None)
    # 144 registers leave room for narrow programs beside a wide one.
    return (64, 8, 5, 144) if shared and not little_room else (32, 4, 5, None)
