"""From sampling parameters to sampled tokens: one call for all sequences of a step that need a next token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.protocol import TokenLogprobs
from engine.requests.sequence import Sequence
from engine.sampling.logits_processors import Ints
from kernels import ops

if TYPE_CHECKING:
    from torch import Tensor

_SCORED_TOGETHER = 64
"""Prompt tokens whose logits are in memory at once: 64 MB in float32 with the largest vocabularies."""


def sample_next(logits: Tensor, sequences: Row[Sequence]) -> tuple[list[int], list[TokenLogprobs | None]]:
    """The next token of each sequence from its row of `logits` [R, vocab], and what `StepResult.logprobs` says of them.

    The random numbers belong to the sequence's seed and the place the new token takes, hence do not depend on what
    else runs, on chunking, or on a preemption in between.
    """
    if all(sequence.sampling.temperature == 0 and sequence.shaping is None for sequence in sequences):
        tokens = ops.greedy(logits)
    else:
        tokens = ops.sample(logits, _rows(sequences, logits.shape[1]))
    counts = [sequence.sampling.logprobs for sequence in sequences]
    rows = [row for row, count in enumerate(counts) if count is not None]
    if not rows:
        return tokens.tolist(), []
    index = torch.tensor(rows, device=logits.device)
    logprobs: list[TokenLogprobs | None] = [None] * len(sequences)
    wanted = [count for count in counts if count is not None]
    for row, found in zip(rows, _logprobs(logits[index], tokens[index], wanted), strict=True):
        logprobs[row] = found
    return tokens.tolist(), logprobs


def best_tokens(logits: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The `count` most likely next tokens after one row of `logits` [vocab], and their log probabilities (float32)."""
    logprobs, tokens = logits.float().log_softmax(-1).topk(min(count, logits.shape[-1]))
    return tokens.tolist(), logprobs.tolist()


def score_prompt(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, following: list[int], count: int
) -> list[TokenLogprobs]:
    """How likely each token of `following` [R] was after the row of `hidden` [R, hidden] before it.

    `logits` turns rows of hidden states into logits; it is given a few at a time.
    """
    scores: list[TokenLogprobs] = []
    tokens = torch.tensor(following, device=hidden.device)
    for rows, chosen in zip(hidden.split(_SCORED_TOGETHER), tokens.split(_SCORED_TOGETHER), strict=True):
        scores += _logprobs(logits(rows), chosen, [count] * len(chosen))
    return scores


def _logprobs(logits: Tensor, tokens: Tensor, counts: list[int]) -> list[TokenLogprobs]:
    """Of tokens [R], with as many of the most likely ones as each row of `counts` says."""
    found = ops.logprobs(logits, tokens, max(counts))
    columns = (tokens, found.chosen, found.ranks, found.top_tokens, found.top)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(top_tokens[:count], top[:count], strict=True)))
        for (token, logprob, rank, top_tokens, top), count in zip(
            zip(*(column.tolist() for column in columns), strict=True), counts, strict=True
        )
    ]


def _rows(sequences: Row[Sequence], vocab: int) -> ops.SamplingRows:
    params = [sequence.sampling for sequence in sequences]
    shaped = any(sequence.shaping for sequence in sequences)
    return ops.SamplingRows(
        temperatures=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([min(p.top_k, vocab) for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seeds=np.array([p.seed for p in params], np.int64),
        positions=np.array([len(sequence.tokens) for sequence in sequences], np.int64),
        penalties=_penalties(sequences) if shaped else None,
        bias=_bias(sequences) if shaped else None,
        mask=_mask(sequences, vocab) if shaped else None,
    )


_NOTHING: Ints = np.empty(0, np.int32)


def _penalties(sequences: Row[Sequence]) -> ops.Penalties | None:
    seen = [sequence.shaping.seen if sequence.shaping else None for sequence in sequences]
    if not any(seen):
        return None
    tokens, counts = [], []
    for sequence, tally in zip(sequences, seen, strict=True):
        if tally is not None:
            tally.update(sequence.tokens)
        own_tokens, own_counts = (_NOTHING, _NOTHING) if tally is None else tally.arrays()
        tokens.append(own_tokens)
        counts.append(own_counts)
    params = [sequence.sampling for sequence in sequences]
    return ops.Penalties(
        offsets=_offsets(tokens),
        tokens=np.concatenate(tokens),
        counts=np.concatenate(counts),
        repetition=np.array([p.repetition_penalty for p in params], np.float32),
        frequency=np.array([p.frequency_penalty for p in params], np.float32),
        presence=np.array([p.presence_penalty for p in params], np.float32),
    )


def _bias(sequences: Row[Sequence]) -> ops.Bias | None:
    if not any(sequence.sampling.logit_bias for sequence in sequences):
        return None
    shapings = [sequence.shaping for sequence in sequences]
    tokens = [_NOTHING if shaping is None else shaping.bias_tokens for shaping in shapings]
    values = [shaping.bias_values for shaping in shapings if shaping is not None]
    return ops.Bias(offsets=_offsets(tokens), tokens=np.concatenate(tokens), values=np.concatenate(values))


def _mask(sequences: Row[Sequence], vocab: int) -> ops.Mask | None:
    bits: list[Ints] = []
    index = np.full(len(sequences), -1, np.int32)
    for row, sequence in enumerate(sequences):
        mask = sequence.shaping.mask(sequence.generated, vocab) if sequence.shaping else None
        if mask is not None:
            index[row] = len(bits)
            bits.append(mask)
    return ops.Mask(np.stack(bits), index) if bits else None


def _offsets(parts: Iterable[Ints]) -> Ints:
    return np.cumsum([0, *map(len, parts)], dtype=np.int32)
