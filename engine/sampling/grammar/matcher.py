"""Where a sequence stands in its grammar, and which tokens may come next.

A mask takes from 50 microseconds to some milliseconds. A thread begins it as soon as the token before it is known, so
it is there when the next step's logits are.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.sampling.grammar.errors import brief


class Matcher:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: LLMatcher, mask: Future[bytes], threads: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._mask = mask
        self._threads = threads
        self.error = ""
        """Why the grammar can be followed no further, when `take` has met one of llguidance's limits."""

    def fork(self) -> Matcher:
        """Another one at the same place."""
        self._mask.result()
        return Matcher(self._matcher.deep_copy(), self._mask, self._threads)

    def mask(self) -> NDArray[np.int32]:
        """Packed, as kernels.sampling.Mask says; read only. The model's end tokens are in it where the text may end."""
        return np.frombuffer(self._mask.result(), np.int32)

    def take(self, token: int) -> bool:
        """Go on with a token of the mask. True when the text has ended: nothing can follow, or there is an `error`."""
        self._mask.result()  # the thread that computed it is done with the matcher
        self._matcher.consume_token(token)
        self.error = brief(self._matcher.get_error())
        ended = self._matcher.is_stopped()
        if not ended:
            self._mask = self._threads.submit(self._matcher.compute_bitmask)
        return ended
