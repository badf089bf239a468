"""What shapes the distribution of one sequence's next token, beyond temperature and the filters of likely tokens.

It follows from the sequence's parameters and tokens alone, so a preemption does not touch it. Holds no tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.protocol import SamplingParams

if TYPE_CHECKING:
    from engine.sampling.grammar.compile import Matcher

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
_NOTHING: Ints = np.empty(0, np.int32)


class SeenTokens:
    """The distinct tokens of a growing list, in order of appearance, and how often each was generated."""

    def __init__(self, prompt_len: int) -> None:
        self._prompt_len = prompt_len
        self._read = 0
        self._place: dict[int, int] = {}
        self._tokens = array("i")
        self._counts = array("i")

    def update(self, tokens: list[int], known: int) -> None:
        """Take in what was appended to the first `known` tokens of prompt and answer since the last call."""
        for position in range(self._read, known):
            place = self._place.setdefault(tokens[position], len(self._tokens))
            if place == len(self._tokens):
                self._tokens.append(tokens[position])
                self._counts.append(0)
            self._counts[place] += position >= self._prompt_len
        self._read = max(self._read, known)

    def arrays(self) -> tuple[Ints, Ints]:
        """(tokens, counts), copies."""
        return np.array(self._tokens, np.int32), np.array(self._counts, np.int32)


class LogitsProcessor:
    """Penalties, bias and allowed tokens of one sequence."""

    @staticmethod
    def of(params: SamplingParams, prompt_len: int) -> LogitsProcessor | None:
        """None when the parameters ask for none of this."""
        masked = params.allowed_token_ids or params.bad_token_ids or params.min_tokens or params.grammar
        return LogitsProcessor(params, prompt_len) if masked or params.logit_bias or _penalises(params) else None

    def __init__(self, params: SamplingParams, prompt_len: int) -> None:
        self._params = params
        self._seen = SeenTokens(prompt_len) if _penalises(params) else None
        self.bias_tokens: Ints = np.array([token for token, _ in params.logit_bias], np.int32)
        self.bias_values: Floats = np.array([value for _, value in params.logit_bias], np.float32)
        self.matcher: Matcher | None = None
        """Where the sequence stands in its grammar; given to it before it is first scheduled."""
        self._always: Ints | None = None
        """The mask of allowed_token_ids and bad_token_ids, once it has been needed."""

    @property
    def penalises(self) -> bool:
        """True when the tokens seen so far change the logits."""
        return self._seen is not None

    def seen_tokens(self, tokens: list[int], known: int) -> tuple[Ints, Ints]:
        """(distinct tokens, how often each was generated) of the first `known` of `tokens`; none without penalties."""
        if self._seen is None:
            return _NOTHING, _NOTHING
        self._seen.update(tokens, known)
        return self._seen.arrays()

    def mask(self, generated: int, vocab: int) -> Ints | None:
        """The packed mask (kernels.sampling.Mask) for the token after `generated` ones; None: all are allowed."""
        params = self._params
        too_early = generated < params.min_tokens and params.stop_token_ids
        if params.grammar:
            assert self.matcher is not None, "a sequence with a grammar is scheduled when that is compiled"
            mask = self.matcher.mask()[: -(-vocab // 32)]  # llguidance has a bit more, hence often a word
            return _without(mask, params.stop_token_ids) if too_early else mask
        if not (too_early or params.allowed_token_ids or params.bad_token_ids):
            return None
        if self._always is None:
            self._always = _without(_pack(params.allowed_token_ids or range(vocab), vocab), params.bad_token_ids)
        return _without(self._always, params.stop_token_ids) if too_early else self._always


def _penalises(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)


def _pack(tokens: Collection[int], vocab: int) -> Ints:
    """The mask that allows these tokens."""
    flags = np.zeros(-(-vocab // 32) * 32, np.uint8)
    flags[np.fromiter(tokens, np.intp, len(tokens))] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def _without(mask: Ints, tokens: Iterable[int]) -> Ints:
    """The mask less these tokens, unless that leaves none."""
    words = mask.copy().view(np.uint32)
    for token in tokens:
        words[token // 32] &= ~np.uint32(1 << token % 32)
    return words.view(np.int32) if words.any() else mask
