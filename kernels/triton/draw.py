"""Sampling on the GPU: the operations of kernels/backend.py, and the same without a word to or from the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling import Mask, Penalties, SamplingRows
from kernels.triton.overlap import overlap
from kernels.triton.sampling import best_of_rows, best_of_stretches, filter_rows

_STRETCH = 2048
"""Tokens of the vocabulary a program looks at."""
_UNPACKED = 32
"""Rows of a mask that are unpacked at a time: 16 MB with the largest vocabularies."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """How each row's token is drawn, on the device; all [R] or longer."""

    temperatures: Tensor
    """float32."""
    top_k: Tensor
    """int32."""
    top_p: Tensor
    """float32."""
    min_p: Tensor
    """float32."""
    seeds: Tensor
    """int64."""
    positions: Tensor
    """Integers: the place the new token takes."""


def draw(
    logits: Tensor, rows: DeviceRows, out: Tensor, newest: Tensor | None = None, table_rows: Tensor | None = None
) -> None:
    """A token of each row of logits [R, vocab] to int32 out [R], and where given to newest[table_rows[r]].

    -1 to `out` for a row that holds NaN or +inf, or nothing but -inf.
    """
    count, vocab = logits.shape
    stretches = triton.cdiv(vocab, _STRETCH)
    highest, floors = torch.empty(2, count, dtype=torch.float32, device=logits.device).unbind(0)
    values = torch.empty(count, stretches, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(count, stretches, dtype=torch.int32, device=logits.device)
    filter_rows[(count,)](
        logits,
        rows.temperatures,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        highest,
        floors,
        vocab,
        logits.stride(0),
        LOWEST_BIT=16 if logits.dtype == torch.bfloat16 else 0,
        BLOCK=4096,
        num_warps=16,
        **overlap(logits),
    )
    best_of_stretches[(count, stretches)](
        logits,
        rows.temperatures,
        highest,
        floors,
        rows.seeds,
        rows.positions,
        values,
        tokens,
        vocab,
        logits.stride(0),
        stretches,
        BLOCK=_STRETCH,
        num_warps=4,
        **overlap(logits),
    )
    keep = newest is not None and table_rows is not None
    best_of_rows[(count,)](
        values,
        tokens,
        out,
        newest if keep else out,
        table_rows if keep else out,
        stretches,
        BLOCK=triton.next_power_of_2(stretches),
        KEEP=keep,
        num_warps=1,
        **overlap(logits),
    )


def greedy(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    shaped = rows.shaped()
    out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    for which, edited in ((np.flatnonzero(~shaped), False), (np.flatnonzero(shaped), True)):
        if not len(which):
            continue
        index = torch.from_numpy(which).to(logits.device)
        own = logits.index_select(0, index)  # a copy: logits stay as they are
        if edited:
            own = own.to(torch.float32)
            edit_logits(own, rows, which)
        drawn = torch.empty(len(which), dtype=torch.int32, device=logits.device)
        draw(own, _to_device(rows, which, logits.device), drawn)
        out[index] = drawn
    return out.long()


def _to_device(rows: SamplingRows, which: NDArray[np.intp], device: torch.device) -> DeviceRows:
    arrays = (rows.temperatures, rows.top_k, rows.top_p, rows.min_p, rows.seeds, rows.positions)
    return DeviceRows(*(torch.from_numpy(array[which]).to(device) for array in arrays))


def edit_logits(scores: Tensor, rows: SamplingRows, which: NDArray[np.intp], newest: Tensor | None = None) -> None:
    """Penalties, bias and masks of rows `which`, in place on their logits, float32 [len(which), vocab].

    newest int64 [len(which)]: a generated token that the row's penalties do not count yet; -1: there is none.
    """
    if rows.penalties is not None:
        _penalise(scores, rows.penalties, which, newest)
    if rows.bias is not None:
        row, entry = _entries(rows.bias.offsets, which)
        at = _device(row, scores), _device(rows.bias.tokens[entry].astype(np.int64), scores)
        scores[at] += _device(rows.bias.values[entry], scores)
    if rows.mask is not None:
        _forbid(scores, rows.mask, which)


def _penalise(scores: Tensor, p: Penalties, which: NDArray[np.intp], newest: Tensor | None) -> None:
    row, entry = _entries(p.offsets, which)
    rows, tokens = _device(row, scores), _device(p.tokens[entry].astype(np.int64), scores)
    counts = _device(p.counts[entry], scores)
    columns = [_device(values[which], scores) for values in (p.repetition, p.frequency, p.presence)]

    def penalised(seen: Tensor, counts: Tensor, rows: Tensor | slice) -> Tensor:
        repetition, frequency, presence = (column[rows] for column in columns)
        seen = torch.where(seen > 0, seen / repetition, seen * repetition)
        return seen - frequency * counts - presence * (counts > 0)

    if newest is None:
        scores[rows, tokens] = penalised(scores[rows, tokens], counts, rows)
        return
    again = (tokens == newest[rows]).to(torch.int32)
    fresh = (newest >= 0).to(torch.int32).index_add(0, rows, again, alpha=-1) > 0  # a token that has no entry yet
    every, place = torch.arange(len(newest), device=scores.device), newest.clamp_min(0)
    alone = scores[every, place]
    alone = torch.where(fresh, penalised(alone, torch.ones_like(place), slice(None)), alone)
    scores[rows, tokens] = penalised(scores[rows, tokens], counts + again, rows)
    scores[every, place] = torch.where(fresh, alone, scores[every, place])


def _forbid(scores: Tensor, mask: Mask, which: NDArray[np.intp]) -> None:
    """-inf for the tokens that rows may not take; some rows at a time, since unpacked bits take room."""
    masked = np.flatnonzero(mask.index[which] >= 0)
    for some in np.split(masked, range(_UNPACKED, len(masked), _UNPACKED)):
        bits = _device(mask.bits[mask.index[which][some]], scores)
        unpacked = (bits[:, :, None] >> torch.arange(32, dtype=torch.int32, device=bits.device)) & 1
        forbidden = unpacked.flatten(1)[:, : scores.shape[1]] == 0
        index = _device(some, scores)
        scores[index] = scores[index].masked_fill(forbidden, -torch.inf)


def _device(values: NDArray[np.generic], like: Tensor) -> Tensor:
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else host


def _entries(offsets: NDArray[np.int32], which: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(place in `which`, entry) of every sparse entry of these rows."""
    counts = np.diff(offsets)[which]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(len(which)), counts), np.repeat(offsets[which], counts) + within
