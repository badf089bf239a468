"""How each kernel is started: shapes, warps, stages. Contracts are in kernels/backend.py.

The settings were chosen on an H200, by `pagechat-bench kernels`; nothing is tuned while serving.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from torch.nn import functional

from kernels.torch.linear import PackedLinear
from kernels.triton import elementwise
from kernels.triton.attention import attend_items, merge_parts
from kernels.triton.copies import copy_block_pairs, patch_tables
from kernels.triton.linear import few_rows_linear
from kernels.triton.overlap import NO_OVERLAP, overlap
from kernels.triton.plan import AttentionPlan, Items, has_little_room, multiprocessors
from kernels.triton.work import WIDE_ROWS, narrow_rows

_SMALL = 1 << 22
"""Numbers of a weight below which a product takes no longer than a launch. Larger ones fill the GPU, and a kernel
started beside them would only take room from them."""
FEW_ROWS = 16
"""Most rows that `few_rows_linear` takes; larger products go to cuBLAS."""


def _power(value: int) -> int:
    return triton.next_power_of_2(value)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def pack_linear(weight: Tensor, bias: Tensor | None) -> PackedLinear:
    return PackedLinear(weight.contiguous(), bias, False, *weight.shape)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if _takes_few(x):
        out = torch.empty(len(x), packed.out_features, dtype=x.dtype, device=x.device)
        return _few_rows(x, packed, out)
    return functional.linear(x, packed.weight, packed.bias)


def linear_into(x: Tensor, packed: PackedLinear, out: Tensor) -> None:
    """As `linear`, into `out` [T, out], which is contiguous."""
    if _takes_few(x):
        _few_rows(x, packed, out)
        return
    torch.mm(x, packed.weight.t(), out=out)
    if packed.bias is not None:
        out.add_(packed.bias)


def norm_linear(x: Tensor, norm: Tensor, eps: float, packed: PackedLinear) -> Tensor:
    return linear(rms_norm(x, norm, eps), packed)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, packed: PackedLinear) -> Tensor:
    x = rms_norm(x, norm, eps)
    if _takes_few(x):
        out = torch.empty(len(x), packed.out_features // 2, dtype=x.dtype, device=x.device)
        return _few_rows(x, packed, out, gate=True)
    return silu_and_mul(functional.linear(x, packed.weight, packed.bias))


def add_linear(x: Tensor, packed: PackedLinear, residual: Tensor) -> None:
    if _takes_few(x):
        _few_rows(x, packed, residual, add=True)
        return
    residual.addmm_(x, packed.weight.t())
    if packed.bias is not None:
        residual.add_(packed.bias)


def _takes_few(x: Tensor) -> bool:
    """Few rows of a 16-bit type: in float32 the tensor cores would round more than float32 promises."""
    return len(x) <= FEW_ROWS and x.dtype != torch.float32


def _few_rows(x: Tensor, packed: PackedLinear, out: Tensor, *, gate: bool = False, add: bool = False) -> Tensor:
    columns, inputs = out.shape[-1], packed.in_features
    block_out, block_in, warps, stages = _few_rows_settings(columns, inputs, gate)
    few_rows_linear[(triton.cdiv(columns, block_out),)](
        x,
        packed.weight,
        packed.bias if packed.bias is not None else packed.weight,
        out,
        len(x),
        OUT=columns,
        IN=inputs,
        ROWS=16,
        BLOCK_OUT=block_out,
        BLOCK_IN=block_in,
        GATE=gate,
        ADD=add,
        BIAS=packed.bias is not None,
        STAGES=stages,
        AHEAD=min(16, _power(inputs // 64 + 1) // 2),
        num_warps=warps,
        **(overlap(x) if columns * inputs < _SMALL else NO_OVERLAP),
    )
    return out


def _few_rows_settings(columns: int, inputs: int, gate: bool) -> tuple[int, int, int, int]:
    """(columns a program, inputs a tile, warps, stages)."""
    if columns * inputs < _SMALL:
        return 16, 64 if inputs < 1024 else 256, 2, 4
    if columns >= 1 << 15:
        return 64, 128 if inputs % 128 == 0 else 64, 2, 4
    if gate:
        return 32, 256, 2, 3
    if columns // 32 > 132:  # more programs than multiprocessors: smaller ones, several to each
        return 32, 256, 2, 4
    return 32, 256, 4, 5


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    size = x.shape[-1]
    x = x.contiguous()
    if x.data_ptr() % 16:  # some rows of a tensor of odd width; the kernel is compiled for aligned ones
        x = x.clone()
    out = torch.empty_like(x)
    block = _power(size)
    elementwise.rms_norm[(x.numel() // size,)](
        x, weight, out, size, eps, BLOCK=block, num_warps=min(8, max(1, block // 512)), **overlap(x)
    )
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    block = min(2048, _power(size))
    elementwise.silu_and_mul[(tokens, triton.cdiv(size, block))](
        gate_up, out, size, BLOCK=block, num_warps=4, **overlap(out)
    )
    return out


def rope_angles(positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """float32 [T, D / 2] whatever `dtype`: the rotation itself is computed in float32."""
    half = len(inv_freq)
    # Two allocations: each begins at an aligned address, whatever the number of tokens.
    cos, sin = (torch.empty(len(positions), half, dtype=torch.float32, device=positions.device) for _ in range(2))
    elementwise.rotation_angles[(len(positions),)](
        positions, inv_freq, cos, sin, scaling, half, BLOCK=_power(half), num_warps=1, **overlap(cos)
    )
    return cos, sin


def rope_and_cache_kv(
    qkv: Tensor,
    heads: int,
    angles: tuple[Tensor, Tensor] | None,
    kv: Tensor,
    plan: AttentionPlan,
    norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    tokens, all_heads, head_dim = qkv.shape
    head_tile = min(8, _power(all_heads))
    cos, sin = angles if angles is not None else (qkv, qkv)
    q_norm, k_norm, eps = norms if norms is not None else (qkv, qkv, 0.0)
    elementwise.rope_and_cache_kv[(tokens, triton.cdiv(all_heads, head_tile))](
        qkv,
        cos,
        sin,
        q_norm,
        k_norm,
        kv,
        plan.tables,
        plan.rows,
        plan.positions,
        eps,
        qkv.stride(0),
        plan.tables.stride(0),
        kv.stride(0),
        HEADS=heads,
        KV_HEADS=plan.kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=plan.block_size,
        HALF=_power(head_dim // 2),
        HEAD_TILE=head_tile,
        ROTATE=angles is not None,
        NORM=norms is not None,
        num_warps=2,
        **overlap(qkv),
    )
    return qkv[:, :heads]


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
            BLOCK_D=_power(head_dim),
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
        BLOCK_D=max(16, _power(head_dim)),
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


def embed(ids: Tensor, newest: Tensor, embedding: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, hidden] in `dtype` of ids [T], int32; the id -(r + 1) stands for newest[r], int32."""
    hidden = embedding.shape[1]
    out = torch.empty(len(ids), hidden, dtype=dtype, device=ids.device)
    block = min(1024, _power(hidden))
    elementwise.embed_tokens[(len(ids), triton.cdiv(hidden, block))](
        ids, newest, embedding, out, hidden, BLOCK=block, num_warps=2, **overlap(out)
    )
    return out


def patch(tables: Tensor, patches: Tensor, count: Tensor, most: int) -> None:
    """tables[row, index] = block for the first count [1] of `patches` [most, 3], in place; all int32."""
    patch_tables[(triton.cdiv(most, 256),)](
        tables, patches, count, tables.stride(0), BLOCK=256, num_warps=2, **overlap(tables)
    )


def copy_blocks(kv: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    if not pairs:
        return
    if {a for a, _ in pairs} & {b for _, b in pairs}:  # a block is read and written: all reads first
        sources, destinations = torch.tensor(pairs, device=kv.device).unbind(1)
        kv.index_copy_(0, destinations, kv.index_select(0, sources))
        return
    _copy(kv, kv, pairs)


def move_blocks(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    if pairs:
        _copy(source, destination, pairs)


def _copy(source: Tensor, destination: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Host memory takes part when it is pinned: the GPU reads and writes it through the bus."""
    device = source.device if source.device.type == "cuda" else destination.device
    table = torch.tensor(pairs, dtype=torch.int32)
    if device.type == "cuda":
        table = table.pin_memory()
    start_copy(source, destination, table.to(device, non_blocking=True))


def start_copy(source: Tensor, destination: Tensor, pairs: Tensor) -> None:
    """Blocks of one layer's pool to another's; `pairs` int32 [n, 2] on the device, no block both read and written."""
    words = source[0].numel() * source.element_size() // 4
    block = min(1024, _power(words))
    copy_block_pairs[(len(pairs), triton.cdiv(words, block))](
        source.view(torch.int32), destination.view(torch.int32), pairs, WORDS=words, BLOCK=block, num_warps=4
    )
