"""Choosing the next token: greedy, or Gumbel-max over the filtered distribution with counter-based random numbers.

Adding independent Gumbel noise to log probabilities and taking the largest draws from the distribution. The noise is
-log(-log(1 - u)) of a uniform u hashed from (seed, position, token id), so there is no generator state.

A row whose largest logit is infinite or NaN says nothing: it gets token 0, and the rows beside it theirs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling import Logprobs, Penalties, SamplingRows

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


def greedy(logits: Tensor) -> Tensor:
    largest, tokens = logits.max(-1)
    return tokens.masked_fill_(~largest.isfinite(), 0)


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    others = np.flatnonzero((rows.temperatures > 0) | rows.shaped()).tolist()
    tokens = greedy(logits) if len(others) < len(logits) else logits.new_empty(len(logits), dtype=torch.int64)
    for row in others:  # row by row: one row's numbers stay in the cache
        scores = logits[row].to(torch.float32)
        tokens[row] = _choose(scores, rows, row) if scores.max().isfinite() else 0
    return tokens


def logprobs(logits: Tensor, tokens: Tensor, count: int) -> Logprobs:
    scores = logits.to(torch.float32).log_softmax(-1)
    chosen = scores.gather(1, tokens.unsqueeze(1))
    top = scores.topk(min(count, scores.shape[1]))
    return Logprobs(chosen.squeeze(1), (scores > chosen).sum(1) + 1, top.indices, top.values)


def _choose(scores: Tensor, rows: SamplingRows, row: int) -> Tensor:
    """One token id of a row's logits [vocab], in float32."""
    if rows.penalties is not None:
        scores = _penalise(scores, rows.penalties, row)
    if rows.bias is not None:
        part = slice(*rows.bias.offsets[row : row + 2])
        scores = scores.index_add(0, _like(scores, rows.bias.tokens[part]), _like(scores, rows.bias.values[part]))
    tokens = None
    if rows.mask is not None and rows.mask.index[row] >= 0:
        tokens = _allowed(_like(scores, rows.mask.bits[rows.mask.index[row]]), len(scores))
        scores = scores[tokens]
    if not scores.max().isfinite():  # every token that is left has been ruled out by the model itself
        return scores.new_zeros((), dtype=torch.int64) if tokens is None else tokens[0]
    if rows.temperatures[row] > 0:
        return _draw(scores, tokens, rows, row)
    best = scores.argmax()
    return best if tokens is None else tokens[best]


def _like(scores: Tensor, values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(scores.device)


def _penalise(scores: Tensor, penalties: Penalties, row: int) -> Tensor:
    part = slice(*penalties.offsets[row : row + 2])
    tokens = _like(scores, penalties.tokens[part]).long()
    counts = _like(scores, penalties.counts[part])
    repetition = float(penalties.repetition[row])
    seen = scores[tokens]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen -= float(penalties.frequency[row]) * counts + float(penalties.presence[row]) * (counts > 0)
    return scores.index_copy(0, tokens, seen)


def _allowed(bits: Tensor, vocab: int) -> Tensor:
    """The token ids, int64, whose bits are set in a packed row of a mask."""
    unpacked = (bits.unsqueeze(1) >> torch.arange(32, dtype=torch.int32, device=bits.device)) & 1
    return unpacked.flatten()[:vocab].nonzero().squeeze(-1)


def _draw(scores: Tensor, tokens: Tensor | None, rows: SamplingRows, row: int) -> Tensor:
    """One token id of a row whose `tokens` (None: all) have these scores; only what passes the filters gets noise."""
    scores = (scores - scores.max()) / max(float(rows.temperatures[row]), _COLDEST)  # the largest stays 0
    min_p, top_k, top_p = float(rows.min_p[row]), int(rows.top_k[row]), float(rows.top_p[row])
    if min_p > 0:
        scores, tokens = _keep(scores >= math.log(min_p), scores, tokens)
    if 0 < top_k < len(scores):
        scores, tokens = _keep(scores >= scores.topk(top_k).values[-1], scores, tokens)
    if top_p < 1:
        scores, tokens = _keep(scores >= _nucleus_threshold(scores, top_p), scores, tokens)
    if tokens is None:
        tokens = torch.arange(len(scores), device=scores.device)
    key = _splitmix(_splitmix(int(rows.seeds[row])) ^ int(rows.positions[row]))
    return tokens[(scores + _gumbel(key, tokens)).argmax()]


def _keep(inside: Tensor, scores: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scores, and the tokens they belong to, that are inside."""
    kept = inside.nonzero().squeeze(-1)
    return scores[kept], kept if tokens is None else tokens[kept]


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
