"""Log probabilities that a request keeps until its answer is written: numbers in arrays, some 14 bytes for each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from engine.protocol import TokenLogprobs

MOST_OF_A_REQUEST = 2**21
"""Numbers: for each token its own, and one for each of the likeliest beside it. Written as JSON they take a hundred
bytes each."""
MOST_OF_ALL = 2**23


class KeptLogprobs:
    """What was added, and made into `TokenLogprobs` again one by one."""

    def __init__(self) -> None:
        self._tokens, self._ranks, self._widths = array("i"), array("i"), array("i")
        self._top_tokens = array("i")
        self._logprobs, self._top_logprobs = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._tokens)

    def __iadd__(self, more: Iterable[TokenLogprobs]) -> KeptLogprobs:
        for one in more:
            self._tokens.append(one.token)
            self._ranks.append(one.rank)
            self._logprobs.append(one.logprob)
            self._widths.append(len(one.top))
            for token, logprob in one.top:
                self._top_tokens.append(token)
                self._top_logprobs.append(logprob)
        return self

    def __iter__(self) -> Iterator[TokenLogprobs]:
        place = 0
        for token, logprob, rank, width in zip(self._tokens, self._logprobs, self._ranks, self._widths, strict=True):
            end = place + width
            top = tuple(zip(self._top_tokens[place:end], self._top_logprobs[place:end], strict=True))
            yield TokenLogprobs(token, logprob, rank, top)
            place = end
