"""What lies between the matrix products: embedding, RMSNorm, SwiGLU, rotary embedding with the KV write."""

from __future__ import annotations

import triton.language as tl

from kernels.triton.compilations import kernel


@kernel(varies=("ids", "newest"))
def embed_tokens(ids, newest, embedding, out, hidden, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out[t] = embedding[ids[t]]; a negative id -(r + 1) stands for the token row r sampled last, newest[r]."""
    token = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    name = tl.load(ids + token).to(tl.int64)
    if name < 0:
        name = tl.load(newest - name - 1).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    value = tl.load(embedding + name * hidden + column, mask=inside)
    tl.store(out + token.to(tl.int64) * hidden + column, value.to(out.dtype.element_ty), mask=inside)


@kernel()
def rms_norm(x, weight, out, size, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """RMSNorm of rows of `size` numbers, computed in float32; one row a program."""
    column = tl.arange(0, BLOCK)
    inside = column < size
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * size
    value = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    value = value / tl.sqrt(tl.sum(value * value, 0) / size + eps)
    tl.store(out + start + column, (value * w).to(out.dtype.element_ty), mask=inside)


@kernel()
def silu_and_mul(gate_up, out, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out = silu(gate) * up, for rows of `size` gates followed by as many ups."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(gate_up + token * 2 * size + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * size + size + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * size + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@kernel(varies=("positions",))
def rotation_angles(positions, inv_freq, cos, sin, scaling, half, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Cosines and sines of a step, float32 [T, half]."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < half
    angle = tl.load(positions + token).to(tl.float32) * tl.load(inv_freq + i, mask=inside, other=0.0)
    to = token.to(tl.int64) * half + i
    tl.store(cos + to, tl.cos(angle) * scaling, mask=inside)
    tl.store(sin + to, tl.sin(angle) * scaling, mask=inside)


@kernel(varies=("tables", "rows", "positions", "table_stride"))
def rope_and_cache_kv(
    qkv,
    cos,
    sin,
    q_norm,
    k_norm,
    kv,
    tables,
    rows,
    positions,
    eps,
    qkv_stride,
    table_stride,
    block_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    ROTATE: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Norm and rotation of queries and keys; queries stay in qkv [T, H + 2 * K, D], keys and values go to their slots.

    A program takes HEAD_TILE heads of one token, each as its two halves of D / 2 numbers. A token whose block is the
    null block is padding: nothing of it is written to kv.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    head = tl.program_id(1) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    i = tl.arange(0, HALF)
    half: tl.constexpr = HEAD_DIM // 2
    mask = (head < HEADS + 2 * KV_HEADS)[:, None] & (i < half)[None, :]
    here = qkv + token.to(tl.int64) * qkv_stride + head[:, None] * HEAD_DIM + i[None, :]
    low_in = tl.load(here, mask=mask, other=0.0)
    high_in = tl.load(here + half, mask=mask, other=0.0)
    low, high = low_in.to(tl.float32), high_in.to(tl.float32)
    turns = (head < HEADS + KV_HEADS)[:, None]
    if NORM:
        ratio = 1.0 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / HEAD_DIM + eps)
        is_query = (head < HEADS)[:, None]
        inside = (i < half)[None, :]
        at = i[None, :] + tl.zeros((HEAD_TILE, 1), tl.int32)
        low_q = tl.load(q_norm + at, mask=inside & is_query, other=0.0)
        low_k = tl.load(k_norm + at, mask=inside & (is_query == 0), other=0.0)
        high_q = tl.load(q_norm + half + at, mask=inside & is_query, other=0.0)
        high_k = tl.load(k_norm + half + at, mask=inside & (is_query == 0), other=0.0)
        low = tl.where(turns, low * ratio[:, None] * tl.where(is_query, low_q, low_k).to(tl.float32), low)
        high = tl.where(turns, high * ratio[:, None] * tl.where(is_query, high_q, high_k).to(tl.float32), high)
    if ROTATE:
        angle = token.to(tl.int64) * half + i
        c = tl.load(cos + angle, mask=i < half, other=0.0)[None, :]
        s = tl.load(sin + angle, mask=i < half, other=0.0)[None, :]
        turned_low = low * c - high * s
        turned_high = high * c + low * s
        low = tl.where(turns, turned_low, low)
        high = tl.where(turns, turned_high, high)
    low_out = low.to(low_in.dtype)
    high_out = high.to(low_in.dtype)
    queries = mask & (head < HEADS)[:, None]
    tl.store(here, low_out, mask=queries)
    tl.store(here + half, high_out, mask=queries)
    position = tl.load(positions + token)
    row = tl.load(rows + token).to(tl.int64)
    block = tl.load(tables + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
    cached = mask & (head >= HEADS)[:, None] & (block > 0)
    # heads HEADS .. are keys, then values: in that order also in a block
    place = (head - HEADS)[:, None] * BLOCK_SIZE + position % BLOCK_SIZE
    slot = kv + block * block_stride + place * HEAD_DIM + i[None, :]
    tl.store(slot, low_out, mask=cached)
    tl.store(slot + half, high_out, mask=cached)
