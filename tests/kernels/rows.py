"""Sampling rows for tests: what is not said is neutral."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from kernels.sampling import Bias, Mask, Penalties, SamplingRows


@dataclass(frozen=True)
class Row:
    """One row, in plain Python."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    """Token: how often generated (0: in the prompt only)."""
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None


def pack(rows: Sequence[Row], vocab: int) -> SamplingRows:
    """What the operation takes; parts that no row needs are left out."""
    penalties = bias = mask = None
    if any(row.seen for row in rows):
        penalties = Penalties(
            offsets=_offsets([row.seen for row in rows]),
            tokens=np.array([token for row in rows for token in row.seen], np.int32),
            counts=np.array([count for row in rows for count in row.seen.values()], np.int32),
            repetition=np.array([row.repetition for row in rows], np.float32),
            frequency=np.array([row.frequency for row in rows], np.float32),
            presence=np.array([row.presence for row in rows], np.float32),
        )
    if any(row.bias for row in rows):
        bias = Bias(
            offsets=_offsets([row.bias for row in rows]),
            tokens=np.array([token for row in rows for token in row.bias], np.int32),
            values=np.array([value for row in rows for value in row.bias.values()], np.float32),
        )
    masked = [row.allowed for row in rows if row.allowed is not None]
    if masked:
        words = -(-vocab // 32)
        bits = np.array([[sum(1 << b for b in range(32) if w * 32 + b in a) for w in range(words)] for a in masked])
        places = accumulate((row.allowed is not None for row in rows), initial=0)
        index = [place if row.allowed is not None else -1 for row, place in zip(rows, places, strict=False)]
        mask = Mask(bits.astype(np.uint32).view(np.int32), np.array(index, np.int32))
    return SamplingRows(
        temperatures=np.array([row.temperature for row in rows], np.float32),
        top_k=np.array([row.top_k for row in rows], np.int32),
        top_p=np.array([row.top_p for row in rows], np.float32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        seeds=np.array([row.seed for row in rows], np.int64),
        positions=np.array([row.position for row in rows], np.int64),
        penalties=penalties,
        bias=bias,
        mask=mask,
    )


def _offsets(parts: Sequence[dict[int, float]] | Sequence[dict[int, int]]) -> np.ndarray:
    return np.array([0, *accumulate(map(len, parts))], np.int32)
