"""What the scheduler decides: a step, and the tokens of each sequence in it. A runner gets a StepInput made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.requests.sequence import Sequence


class ScheduledTokens(msgspec.Struct, eq=False, gc=False):
    """Tokens `start .. start+count-1` of a sequence, to compute in one step.

    Each token of a decode step takes one, hence a msgspec struct: it is quick to make, and as nothing refers back to
    it, the garbage collector need not look at it.
    """

    sequence: Sequence
    start: int
    count: int
    forks: list[Sequence] = []
    """Sequences born from this one in this step: each samples a token of its own from the same logits."""

    @property
    def samples(self) -> bool:
        """True when they reach the newest token: its logits choose the next one."""
        return self.start + self.count == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """One forward pass: tokens of several sequences, prefill and decode alike.

    Before the forward the runner moves KV in this order: swap_out, copy, swap_in; all copies read
    before any is written.
    """

    number: int
    spans: list[ScheduledTokens]
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    """(block, host slot)."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination) blocks, in all layers (copy-on-write)."""
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    """(host slot, block)."""
