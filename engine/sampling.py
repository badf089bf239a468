"""From sampling parameters to sampled tokens: one call for all sequences of a step that need a next token."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import TYPE_CHECKING

from engine.sequence import Sequence
from kernels import ops

if TYPE_CHECKING:
    from torch import Tensor


def sample_next(logits: Tensor, sequences: Row[Sequence]) -> list[int]:
    """The next token of each sequence from its row of `logits` [R, vocab].

    The random numbers belong to the sequence's seed and the place the new token takes, hence do not depend on what
    else runs, on chunking, or on a preemption in between.
    """
    params = [sequence.sampling for sequence in sequences]
    tokens = ops.sample(
        logits,
        temperatures=[p.temperature for p in params],
        top_k=[p.top_k for p in params],
        top_p=[p.top_p for p in params],
        seeds=[p.seed for p in params],
        positions=[len(sequence.tokens) for sequence in sequences],
    )
    return tokens.tolist()


def best_tokens(logits: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The `count` most likely next tokens after one row of `logits` [vocab], and their log probabilities (float32)."""
    logprobs, tokens = logits.float().log_softmax(-1).topk(min(count, logits.shape[-1]))
    return tokens.tolist(), logprobs.tolist()
