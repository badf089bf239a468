"""Tokens per second, as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 3.0


class Rate:
    """Of one answer, over the last few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, tokens: int) -> None:
        """So many tokens have come in all."""
        now = self._clock()
        self._seen.append((now, tokens))
        while self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()

    @property
    def tokens_per_s(self) -> float:
        if len(self._seen) < 2:
            return 0.0
        (begin, first), last = self._seen[0], self._seen[-1][1]
        return (last - first) / max(self._clock() - begin, 0.1)
