"""Recompute or swap: which way of preempting a sequence is cheaper, by measurement.

Costs are moving averages of what this engine saw: seconds per prompt token computed, seconds per
block moved. Until both are known nothing is swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.2
"""The newest measurement counts so much in a moving average."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way that is taken, and the seconds that each would cost, as far as they are known."""

    swap: bool
    recompute_s: float | None
    swap_s: float | None


class PreemptionCosts:
    """It keeps the measured costs of computing tokens again, and of moving blocks out and back."""

    def __init__(self) -> None:
        self.token_s: float | None = None
        self.block_s: float | None = None

    def saw_tokens(self, tokens: int, seconds: float) -> None:
        """Take in that a step computed `tokens` prompt tokens."""
        self.token_s = _average(self.token_s, seconds / tokens)

    def saw_blocks(self, blocks: int, seconds: float) -> None:
        """Take in that `blocks` blocks were moved between device and host."""
        self.block_s = _average(self.block_s, seconds / blocks)

    def choose(self, tokens: int, blocks: int) -> Choice:
        """Choose for a sequence of `tokens` computed tokens in `blocks` blocks. Swapping moves each block twice."""
        recompute = None if self.token_s is None else tokens * self.token_s
        swap = None if self.block_s is None else 2 * blocks * self.block_s
        return Choice(recompute is not None and swap is not None and swap < recompute, recompute, swap)


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
