"""Log lines that somebody else can cause, written seldom: the first at once, then one at most every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

EVERY_S = 10.0


class Seldom:
    """One thing that may happen very often. Used by one thread."""

    def __init__(self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._next = float("-inf")
        self._untold = 0

    def log(self, logger: logging.Logger, level: int, words: str, *values: Any, exc_info: Any = None) -> None:
        """As `logger.log`; where a line was written a moment ago, this one is counted in the next."""
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        self._next = now + self._every_s
        untold, self._untold = self._untold, 0
        if untold:
            words += " (and %d times since the last such line)"
            values += (untold,)
        logger.log(level, words, *values, exc_info=exc_info)

    def exception(self, logger: logging.Logger, words: str, *values: Any) -> None:
        """In an exception's handler: an error, with the exception."""
        self.log(logger, logging.ERROR, words, *values, exc_info=True)
