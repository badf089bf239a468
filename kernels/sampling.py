"""What the sampling operations take and give: one row for each token that is to be chosen.

Host arrays, so that building them costs a step little; an implementation moves to its device what a step needs.
Penalties and biases are sparse and ragged: those of row r are the entries offsets[r] .. offsets[r + 1] - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Penalties:
    """The tokens that each row has seen, each of them once, and what that costs them."""

    offsets: Ints
    """[R + 1]."""
    tokens: Ints
    """[N]."""
    counts: Ints
    """[N] How often the token was generated; 0: it is in the prompt only."""
    repetition: Floats
    """[R] 1: none; as the other two, it does not matter where the row has no tokens."""
    frequency: Floats
    """[R]."""
    presence: Floats
    """[R]."""


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to the logits of some tokens of each row, each of them once."""

    offsets: Ints
    """[R + 1]."""
    tokens: Ints
    """[N]."""
    values: Floats
    """[N]."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which tokens a row may take; packed as llguidance and xgrammar do: bit t % 32 of word t // 32 is token t."""

    bits: Ints
    """[M, ceil(vocab / 32)] At least one token of each is allowed; bits at and beyond vocab do not matter."""
    index: Ints
    """[R] The row of `bits`; -1: the row may take any token."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row's token is chosen; see `Backend.sample`."""

    temperatures: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]
    penalties: Penalties | None = None
    bias: Bias | None = None
    mask: Mask | None = None

    def shaped(self) -> NDArray[np.bool_]:
        """[R] True where penalties, a bias or a mask change the logits."""
        wanted = np.zeros(len(self.temperatures), dtype=bool)
        for sparse in (self.penalties, self.bias):
            if sparse is not None:
                wanted |= np.diff(sparse.offsets) > 0
        if self.mask is not None:
            wanted |= self.mask.index >= 0
        return wanted


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one token a row, and of the most likely ones."""

    chosen: Tensor
    """float32 [R]."""
    ranks: Tensor
    """int64 [R] 1 more than the number of tokens that are more likely."""
    top_tokens: Tensor
    """int64 [R, count], most likely first."""
    top: Tensor
    """float32 [R, count]."""
