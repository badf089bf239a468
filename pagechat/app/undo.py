"""What can be taken back, the last thing first."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MOST = 50


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    """In words, for a person: "delete of a message"."""
    back: Callable[[], Awaitable[None]]


class Undo:
    """The steps of this run of the app."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=MOST)

    def add(self, what: str, back: Callable[[], Awaitable[None]]) -> None:
        self._steps.append(Step(what, back))

    async def undo(self) -> str | None:
        """Take the last step back and say what it was; None when there is none."""
        if not self._steps:
            return None
        step = self._steps.pop()
        await step.back()
        return step.what
