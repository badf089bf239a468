"""Choosing tokens on the GPU, without a sort and without a word from the host.

Three small kernels: how low a logit may be (only rows that filter), the best token of each stretch of the vocabulary
with its Gumbel noise, and the best of those. The noise is that of kernels/torch/sampling.py, bit for bit up to the
logarithms, and so a result does not depend on the neighbours, the batch or the device.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.compilations import kernel

_OF_ROWS = ("temperatures", "top_k", "top_p", "min_p", "seeds", "positions", "highest_of", "floors")
"""A number for each row, wherever in a step's upload it lies."""


@triton.jit
def _ordered(x):
    """Unsigned integers in the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@kernel(varies=_OF_ROWS)
def filter_rows(
    logits,
    temperatures,
    top_k,
    top_p,
    min_p,
    highest_of,
    floors,
    vocab,
    stride,
    LOWEST_BIT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The largest logit of each row with a temperature, and the smallest one that passes min_p, top_k and top_p.

    The k-th largest, and the last of the nucleus, are found bit by bit from the highest: how many (how much
    probability) lie at or above a candidate? LOWEST_BIT 16 suffices for logits that were bfloat16, whose lower bits
    are zero. One program a row.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    m = tl.load(min_p + row)
    if temperature <= 0.0:
        return
    start = logits + row.to(tl.int64) * stride
    lane = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for at in range(0, vocab, BLOCK):
        most = tl.maximum(most, tl.load(start + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32))
    highest = tl.max(most, 0)
    tl.store(highest_of + row, highest)
    temperature = tl.maximum(temperature, 1e-20)
    floor = float("-inf")
    if m > 0.0:
        floor = highest + temperature * tl.log(m)
    least = tl.full((), 0, tl.uint32)
    if (k > 0) & (k < vocab):
        bit = tl.full((), 31, tl.int32)
        while bit >= LOWEST_BIT:
            candidate = least | (tl.full((), 1, tl.uint32) << bit.to(tl.uint32))
            count = tl.zeros((BLOCK,), tl.int32)
            for at in range(0, vocab, BLOCK):
                inside = at + lane < vocab
                x = tl.load(start + at + lane, mask=inside, other=float("-inf")).to(tl.float32)
                count += (inside & (x >= floor) & (_ordered(x) >= candidate)).to(tl.int32)
            if tl.sum(count, 0) >= k:
                least = candidate
            bit -= 1
    if p < 1.0:
        mass = tl.zeros((BLOCK,), tl.float32)
        for at in range(0, vocab, BLOCK):
            inside = at + lane < vocab
            x = tl.load(start + at + lane, mask=inside, other=float("-inf")).to(tl.float32)
            kept = inside & (x >= floor) & (_ordered(x) >= least)
            mass += tl.where(kept, tl.exp((x - highest) / temperature), 0.0)
        wanted = p * tl.sum(mass, 0)
        nucleus = tl.full((), 0, tl.uint32)
        bit = tl.full((), 31, tl.int32)
        while bit >= LOWEST_BIT:
            candidate = nucleus | (tl.full((), 1, tl.uint32) << bit.to(tl.uint32))
            mass = tl.zeros((BLOCK,), tl.float32)
            for at in range(0, vocab, BLOCK):
                inside = at + lane < vocab
                x = tl.load(start + at + lane, mask=inside, other=float("-inf")).to(tl.float32)
                key = _ordered(x)
                kept = inside & (x >= floor) & (key >= least) & (key >= candidate)
                mass += tl.where(kept, tl.exp((x - highest) / temperature), 0.0)
            if tl.sum(mass, 0) >= wanted:
                nucleus = candidate
            bit -= 1
        least = tl.maximum(least, nucleus)
    # back from the ordered integer to the float it stands for
    bits = least.to(tl.int32, bitcast=True)
    number = tl.where(bits < 0, bits ^ -2147483648, ~bits).to(tl.float32, bitcast=True)
    if least > 0:
        floor = tl.maximum(floor, number)
    tl.store(floors + row, floor)


@triton.jit
def _mixed(x):
    """The finalizer of SplitMix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@kernel(varies=(*_OF_ROWS, "values", "tokens"))
def best_of_stretches(
    logits,
    temperatures,
    highest_of,
    floors,
    seeds,
    positions,
    values,
    tokens,
    vocab,
    stride,
    stretches,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The token with the largest logit over temperature plus noise, of BLOCK tokens of one row a program.

    Temperature 0: no noise. Both outputs are [rows, stretches].
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    stretch = tl.program_id(1)
    token = stretch * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    score = tl.load(logits + row.to(tl.int64) * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    broken = tl.max(((score != score) | (score == float("inf"))).to(tl.int32), 0) > 0
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
        seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
        position = tl.load(positions + row).to(tl.uint64)
        key = _mixed((_mixed(seed + golden) ^ position) + golden)
        high = _mixed(key + token.to(tl.uint64) * golden) >> 32
        u = (high.to(tl.uint32).to(tl.float32) + 0.5) * 2.3283064365386963e-10
        # -log(1 - u), whose first terms are exact where 1 - u would be rounded
        wait = tl.where(u < 1e-3, u + u * u * 0.5 + u * u * u / 3.0, -tl.log(1.0 - u))
        kept = score >= tl.load(floors + row)
        below = (score - tl.load(highest_of + row)) / tl.maximum(temperature, 1e-20)
        score = tl.where(kept, below - tl.log(wait), float("-inf"))
    best = tl.max(score, 0)
    # the lowest id among equals; -1, which wins over all, where the logits say nothing
    chosen = tl.minimum(tl.min(tl.where(score == best, token, 2147483647), 0), vocab - 1)
    to = row * stretches + stretch
    tl.store(values + to, tl.where(broken, float("inf"), best))
    tl.store(tokens + to, tl.where(broken, -1, chosen))


@kernel(varies=("values", "tokens", "out", "newest", "rows"))
def best_of_rows(
    values, tokens, out, newest, rows, stretches, BLOCK: tl.constexpr, KEEP: tl.constexpr, PDL: tl.constexpr
):
    """The best of a row's stretches, into out[row] and, for KEEP, into newest[rows[row]].

    -1 in `out`, where a logit is NaN or +inf, or all are -inf; `newest` must name a token, and gets 0 then.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    inside = lane < stretches
    value = tl.load(values + row * stretches + lane, mask=inside, other=float("-inf"))
    token = tl.load(tokens + row * stretches + lane, mask=inside, other=2147483647)
    best = tl.max(value, 0)
    chosen = tl.where(best == float("-inf"), -1, tl.min(tl.where(value == best, token, 2147483647), 0))
    tl.store(out + row, chosen)
    if KEEP:
        tl.store(newest + tl.load(rows + row), tl.maximum(chosen, 0))
