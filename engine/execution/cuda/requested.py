"""What a step was asked for, beside the tokens that its forward pass draws: launched behind it, and read later.

Each part works on the rows that want it. Nothing waits for the device: results go to pinned memory, and are read when
the step is collected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.cuda.inputs import upload
from engine.execution.sampler import SCORED_TOGETHER, sampling_rows, token_logprobs
from engine.execution.step_input import StepInput, StepResult
from engine.protocol import TokenLogprobs
from kernels.sampling import Logprobs
from kernels.torch.sampling import logprobs as logprobs_of
from kernels.triton.draw import DeviceRows, draw, edit_logits


@dataclass(frozen=True, slots=True)
class Sources:
    """What a forward pass left on the device."""

    logits: Tensor
    """[>= R, vocab] as the model gave them."""
    out: Tensor
    """int32 [>= R]: tokens drawn by temperature and filters alone."""
    samples: NDArray[np.intp]
    """For each sample of the step, its row in both."""
    beams: NDArray[np.intp]
    """For each beam of the step, its row of `logits`."""
    hidden: Tensor | None = None
    """[T, hidden]; None for a step that computes no prompt."""


@dataclass(frozen=True, slots=True)
class Requested:
    """Results of one step, in pinned memory, once the device has written them."""

    step: StepInput
    tokens: Tensor
    """int32; `order` says where each sample's stands."""
    order: NDArray[np.intp]
    logprobs: tuple[NDArray[np.intp], Tensor, Logprobs] | None
    """Samples that want them, their tokens, and what was found."""
    beams: tuple[Tensor, Tensor] | None
    """Token ids and log probabilities, [beams, most candidates], best first."""
    scores: list[tuple[Tensor, Logprobs]]

    @staticmethod
    def launch(
        step: StepInput,
        sources: Sources,
        logits_of: Callable[[Tensor], Tensor],
        newest: Tensor,
        before: Tensor | None,
        device: str,
    ) -> Requested:
        """Start what the step asks for.

        `newest` [rows] takes the tokens that are drawn here. `before` int32 [edits] are each edit's row of it as it was
        before the step; None when no edit wants to know.
        """
        out = sources.out[: max(len(sources.samples), len(step.rows))]
        if step.edits:
            _draw_edited(step, sources, newest, before, device)
        logprobs = None
        wanted = np.flatnonzero(step.logprobs >= 0)
        if len(wanted):
            (rows,) = upload([sources.samples[wanted].astype(np.int64)], device)
            tokens = out[rows].long().clamp_min(0)
            found = _logprobs(sources.logits, rows, tokens, int(step.logprobs.max()))
            logprobs = wanted, _to_host(tokens), found
        beams = None
        if step.beams:
            (rows,) = upload([sources.beams.astype(np.int64)], device)
            most = min(max(count for _, count in step.beams), sources.logits.shape[-1])
            best = sources.logits[rows].float().log_softmax(-1).topk(most)
            beams = _to_host(best.indices), _to_host(best.values)
        scores = []
        for wanted_scores in step.prompt_scores:
            first = int(step.firsts[wanted_scores.span]) + wanted_scores.first
            assert sources.hidden is not None, "prompts are computed in mixed steps"
            hidden = sources.hidden[first : first + len(wanted_scores.following)]
            (following,) = upload([wanted_scores.following.astype(np.int64)], device)
            pieces = [
                logprobs_of(logits_of(rows), tokens, wanted_scores.count)
                for rows, tokens in zip(hidden.split(SCORED_TOGETHER), following.split(SCORED_TOGETHER), strict=True)
            ]
            scores.append((torch.from_numpy(wanted_scores.following), _joined(pieces)))
        return Requested(step, _to_host(out), sources.samples, logprobs, beams, scores)

    def result(self, swap_s: float) -> StepResult:
        """The results, in the order of the step. Call it only when the device is done."""
        step = self.step
        tokens = self.tokens.numpy()[self.order].tolist() if len(self.order) else []
        logprobs: list[TokenLogprobs | None] = []
        if self.logprobs is not None:
            wanted, chosen, found = self.logprobs
            logprobs = [None] * len(tokens)
            each = token_logprobs(chosen, found, step.logprobs[wanted].tolist())
            for sample, one in zip(wanted.tolist(), each, strict=True):
                logprobs[sample] = one
        beams: list[tuple[list[int], list[float]]] = []
        if self.beams is not None:
            rows = zip(self.beams[0].tolist(), self.beams[1].tolist(), step.beams, strict=True)
            beams = [(ids[:count], values[:count]) for ids, values, (_, count) in rows]
        scores = [
            token_logprobs(tokens_of, found, [wanted.count] * len(tokens_of))
            for (tokens_of, found), wanted in zip(self.scores, step.prompt_scores, strict=True)
        ]
        return StepResult(tokens=tokens, logprobs=logprobs, beams=beams, prompt_scores=scores, swap_s=swap_s)


def device_rows(step: StepInput, which: slice | NDArray[np.intp], device: str) -> DeviceRows:
    """How some samples of a step are drawn, on the device."""
    settings = step.settings[which]
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    return DeviceRows(*upload([*(settings[name] for name in names), step.places[which]], device))


def _draw_edited(step: StepInput, sources: Sources, newest: Tensor, before: Tensor | None, device: str) -> None:
    """Draw again for the samples whose logits are edited."""
    which = np.array([edit.sample for edit in step.edits])
    index, table_rows = upload([sources.samples[which].astype(np.int64), step.sample_rows[which]], device)
    unknown = None
    if before is not None:
        (waits,) = upload([np.array([edit.newest_unknown for edit in step.edits], np.int32)], device)
        unknown = torch.where(waits > 0, before, -1).long()
    scores = sources.logits.index_select(0, index).to(torch.float32)
    edit_logits(scores, sampling_rows(step, scores.shape[1]), which, unknown)
    drawn = torch.empty(len(which), dtype=torch.int32, device=device)
    draw(scores, device_rows(step, which, device), drawn, newest, table_rows)
    sources.out[index] = drawn


def _logprobs(logits: Tensor, rows: Tensor, tokens: Tensor, count: int) -> Logprobs:
    """Log probabilities of some rows of the logits, a few rows at a time, on their way to the host."""
    pieces = [
        logprobs_of(logits[some], chosen, count)
        for some, chosen in zip(rows.split(SCORED_TOGETHER), tokens.split(SCORED_TOGETHER), strict=True)
    ]
    return _joined(pieces)


def _joined(pieces: list[Logprobs]) -> Logprobs:
    names = ("chosen", "ranks", "top_tokens", "top")
    return Logprobs(*(_to_host(torch.cat([getattr(piece, name) for piece in pieces])) for name in names))


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, there when the device has come so far."""
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return there.copy_(tensor, non_blocking=True)
