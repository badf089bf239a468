"""Choosing the next token: greedy, or Gumbel-max over the filtered distribution with counter-based random numbers.

Adding independent Gumbel noise to log probabilities and taking the largest draws from the distribution. The noise is
-log(-log(1 - u)) of a uniform u hashed from (seed, position, token id), so there is no generator state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_COLDEST = 1e-20
"""Lower temperatures divide by this: already greedy but for exact ties, and float32 still holds it."""
_FIRST_LOOK = 128
"""Largest tokens that are sorted first to find the nucleus; it rarely has more."""


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _splitmix(value: int) -> int:
    """One output of SplitMix64 (Steele, Lea, Flood 2014) for a Python integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _gumbel(key: int, tokens: Tensor) -> Tensor:
    """float32 noise of each token id (int64): SplitMix64's finalizer over key + id * golden, its upper 32 bits.

    int64 arithmetic wraps around as unsigned does; a shift's sign bits are masked off.
    """
    x = (tokens * _signed(_GOLDEN)).add_(_signed(key))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = x.bitwise_xor_((x >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    uniform = (x >> 32).bitwise_and_(0xFFFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-32)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def sample(
    logits: Tensor,
    temperatures: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> Tensor:
    tokens = logits.argmax(-1)
    for row, temperature in enumerate(temperatures):  # row by row: one row's numbers stay in the cache
        if temperature > 0:
            key = _splitmix(_splitmix(seeds[row]) ^ positions[row])
            tokens[row] = _draw(logits[row].to(torch.float32), temperature, top_k[row], top_p[row], key)
    return tokens


def _draw(logits: Tensor, temperature: float, top_k: int, top_p: float, key: int) -> Tensor:
    """One token id of a row [vocab]; only tokens that pass the filters get noise."""
    scores = (logits - logits.max()) / max(temperature, _COLDEST)  # the largest is 0 at any temperature
    tokens = None
    if 0 < top_k < len(scores):
        tokens = (scores >= scores.topk(top_k).values[-1]).nonzero().squeeze(-1)
        scores = scores[tokens]
    if top_p < 1:
        inside = (scores >= _nucleus_threshold(scores, top_p)).nonzero().squeeze(-1)
        tokens = inside if tokens is None else tokens[inside]
        scores = scores[inside]
    if tokens is None:
        tokens = torch.arange(len(scores), device=scores.device)
    return tokens[(scores + _gumbel(key, tokens)).argmax()]


def _nucleus_threshold(scores: Tensor, p: float) -> Tensor:
    """The smallest score of the fewest largest whose probabilities sum to at least p; scores [n], the largest 0."""
    total = scores.exp().sum()
    count = min(_FIRST_LOOK, len(scores))
    while True:
        largest = scores.topk(count).values
        reached = (largest.exp().cumsum(0) >= p * total).nonzero()
        if len(reached):
            return largest[reached[0, 0]]
        if count == len(scores):  # rounding: even all of them add up to a little less
            return largest[-1]
        count = min(count * 16, len(scores))
