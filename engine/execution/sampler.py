"""From logits to what a step was asked for: chosen tokens, log probabilities, beams' best tokens. Computes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.execution.step_input import FAILED, Ints, LogitsEdit, StepInput
from engine.protocol import TokenLogprobs
from kernels.backend import Backend
from kernels.sampling import Bias, Logprobs, Mask, Penalties, SamplingRows

if TYPE_CHECKING:
    from torch import Tensor

SCORED_TOGETHER = 64
"""Prompt tokens whose logits are in memory at once: 64 MB in float32 with the largest vocabularies."""


def sample_step(logits: Tensor, step: StepInput, backend: Backend) -> tuple[list[int], list[TokenLogprobs | None]]:
    """The token of each sample of the step from its row of `logits` [N, vocab], and its log probabilities.

    The random numbers belong to the sequence's seed and the place the new token takes, hence do not depend on what
    else runs, on chunking, or on a preemption in between. A row that is not finite gets FAILED.
    """
    settings, unusable = step.settings, unusable_rows(logits)
    if unusable:
        logits = logits.clone()
        logits[unusable] = 0
    if not step.edits and not settings["temperature"].any():
        tokens = backend.greedy(logits)
    else:
        tokens = backend.sample(logits, sampling_rows(step, logits.shape[1]))
    chosen = tokens.tolist()
    for row in unusable:
        chosen[row] = FAILED
    wanted = np.flatnonzero(step.logprobs >= 0).tolist()
    if not wanted:
        return chosen, []
    index = torch.tensor(wanted, device=logits.device)
    found = backend.logprobs(logits[index], tokens[index], int(step.logprobs.max()))
    logprobs: list[TokenLogprobs | None] = [None] * len(chosen)
    for row, each in zip(wanted, token_logprobs(tokens[index], found, step.logprobs[wanted].tolist()), strict=True):
        logprobs[row] = each
    return chosen, logprobs


def unusable_rows(logits: Tensor) -> list[int]:
    """Rows of [R, vocab] that hold NaN or +inf, or nothing but -inf: they say nothing of what comes next."""
    sums = logits.sum(-1, dtype=torch.float32)
    if bool(sums.isfinite().all()):  # the usual case, for one pass over the numbers
        return []
    suspects = (~sums.isfinite()).nonzero().flatten().tolist()
    return [row for row in suspects if not bool(logits[row].max().isfinite())]


def best_tokens(logits: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The `count` most likely next tokens after one row of `logits` [vocab], and their log probabilities (float32)."""
    logprobs, tokens = logits.float().log_softmax(-1).topk(min(count, logits.shape[-1]))
    return tokens.tolist(), logprobs.tolist()


def score_prompt(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, following: Ints, count: int, backend: Backend
) -> list[TokenLogprobs]:
    """How likely each token of `following` [R] was after the row of `hidden` [R, hidden] before it.

    `logits` turns rows of hidden states into logits; it is given a few at a time.
    """
    scores: list[TokenLogprobs] = []
    tokens = torch.from_numpy(following.astype(np.int64)).to(hidden.device)
    for rows, chosen in zip(hidden.split(SCORED_TOGETHER), tokens.split(SCORED_TOGETHER), strict=True):
        scores += token_logprobs(chosen, backend.logprobs(logits(rows), chosen, count), [count] * len(chosen))
    return scores


def token_logprobs(tokens: Tensor, found: Logprobs, counts: list[int]) -> list[TokenLogprobs]:
    """What was found of tokens [R], each with as many of the most likely tokens as its entry of `counts` says."""
    columns = (tokens, found.chosen, found.ranks, found.top_tokens, found.top)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(top_tokens[:count], top[:count], strict=True)))
        for (token, logprob, rank, top_tokens, top), count in zip(
            zip(*(column.tolist() for column in columns), strict=True), counts, strict=True
        )
    ]


def sampling_rows(step: StepInput, vocab: int) -> SamplingRows:
    """All samples of a step, as `Backend.sample` takes them."""
    settings, count = step.settings, len(step.sampled)
    return SamplingRows(
        temperatures=settings["temperature"].copy(),
        top_k=np.minimum(settings["top_k"], vocab),
        top_p=settings["top_p"].copy(),
        min_p=settings["min_p"].copy(),
        seeds=settings["seed"].copy(),
        positions=step.places.astype(np.int64),
        penalties=_penalties(step.edits, count),
        bias=_bias(step.edits, count),
        mask=_mask(step.edits, count),
    )


_NOTHING: Ints = np.empty(0, np.int32)


def _penalties(edits: tuple[LogitsEdit, ...], count: int) -> Penalties | None:
    penalised = {edit.sample: edit for edit in edits if len(edit.tokens) or edit.newest_unknown}
    if not penalised:
        return None
    none = LogitsEdit(0)
    rows = [penalised.get(sample, none) for sample in range(count)]
    return Penalties(
        offsets=_offsets(edit.tokens for edit in rows),
        tokens=np.concatenate([edit.tokens for edit in rows]),
        counts=np.concatenate([edit.counts for edit in rows]),
        repetition=np.array([edit.repetition for edit in rows], np.float32),
        frequency=np.array([edit.frequency for edit in rows], np.float32),
        presence=np.array([edit.presence for edit in rows], np.float32),
    )


def _bias(edits: tuple[LogitsEdit, ...], count: int) -> Bias | None:
    biased = {edit.sample: edit for edit in edits if len(edit.bias_tokens)}
    if not biased:
        return None
    tokens = [biased[sample].bias_tokens if sample in biased else _NOTHING for sample in range(count)]
    values = [biased[sample].bias_values for sample in sorted(biased)]
    return Bias(offsets=_offsets(tokens), tokens=np.concatenate(tokens), values=np.concatenate(values))


def _mask(edits: tuple[LogitsEdit, ...], count: int) -> Mask | None:
    masked = [edit for edit in edits if edit.mask is not None]
    if not masked:
        return None
    index = np.full(count, -1, np.int32)
    index[[edit.sample for edit in masked]] = np.arange(len(masked))
    return Mask(np.stack([edit.mask for edit in masked if edit.mask is not None]), index)


def _offsets(parts: Iterable[Ints]) -> Ints:
    return np.cumsum([0, *map(len, parts)], dtype=np.int32)
