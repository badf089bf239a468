"""Sampling on the GPU: the operations of kernels/ops.py, and the same without a word to or from the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling import SamplingRows
from kernels.triton.overlap import overlap
from kernels.triton.sampling import best_of_rows, best_of_stretches, filter_rows

_STRETCH = 2048
"""Tokens of the vocabulary a program looks at."""


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
    """A token of each row of logits [R, vocab] to int32 out [R], and where given to newest[table_rows[r]]."""
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
    plain, edited = np.flatnonzero(~shaped), np.flatnonzero(shaped)
    out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    for which, scores in ((plain, logits), (edited, logits)):
        if not len(which):
            continue
        index = torch.from_numpy(which).to(logits.device)
        own = scores if len(which) == len(logits) else scores.index_select(0, index)
        if which is edited:
            own = _edit(own.to(torch.float32), rows, edited)
        drawn = torch.empty(len(which), dtype=torch.int32, device=logits.device)
        draw(own, _to_device(rows, which, logits.device), drawn)
        out[index] = drawn
    return out.long()


def _to_device(rows: SamplingRows, which: NDArray[np.intp], device: torch.device) -> DeviceRows:
    arrays = (rows.temperatures, rows.top_k, rows.top_p, rows.min_p, rows.seeds, rows.positions)
    return DeviceRows(*(torch.from_numpy(array[which]).to(device) for array in arrays))


def _edit(scores: Tensor, rows: SamplingRows, which: NDArray[np.intp]) -> Tensor:
    """Penalties, bias and masks of rows `which`, whose float32 scores these are; in place where it can be."""

    def device(values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(scores.device)

    def entries(offsets: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """(row of `scores`, entry) of every sparse entry of these rows."""
        counts = np.diff(offsets)[which]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(which)), counts), np.repeat(offsets[which], counts) + within

    if rows.penalties is not None:
        p = rows.penalties
        row, entry = entries(p.offsets)
        at = device(row), device(p.tokens[entry].astype(np.int64))
        counts, (repetition, frequency, presence) = (
            device(p.counts[entry]),
            (device(values[which][row]) for values in (p.repetition, p.frequency, p.presence)),
        )
        seen = scores[at]
        seen = torch.where(seen > 0, seen / repetition, seen * repetition)
        scores[at] = seen - frequency * counts - presence * (counts > 0)
    if rows.bias is not None:
        row, entry = entries(rows.bias.offsets)
        at = device(row), device(rows.bias.tokens[entry].astype(np.int64))
        scores[at] += device(rows.bias.values[entry])
    if rows.mask is not None:
        masked = np.flatnonzero(rows.mask.index[which] >= 0)
        bits = device(rows.mask.bits[rows.mask.index[which][masked]])
        unpacked = (bits[:, :, None] >> torch.arange(32, dtype=torch.int32, device=bits.device)) & 1
        forbidden = unpacked.flatten(1)[:, : scores.shape[1]] == 0
        index = device(masked)
        scores[index] = scores[index].masked_fill(forbidden, -torch.inf)
    return scores
