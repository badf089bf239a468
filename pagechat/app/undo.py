"""What can be taken back, the last thing first, and done again. It takes back exactly what it says.

A step knows what it changed, not how everything looked before: what came later, here or in another window, stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from pagechat.app.message import Message

MOST = 50


class CannotUndo(Exception):
    """The message says why, for people."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    """In words, for a person: "delete of a message"."""
    back: Callable[[], Awaitable[None]]
    again: Callable[[], Awaitable[None]]
    moot: Callable[[], bool] = field(default=_never)
    """It has been taken back in another way already."""


class Undo:
    """The steps of this run of the app."""

    def __init__(self) -> None:
        self._done: deque[Step] = deque(maxlen=MOST)
        self._undone: list[Step] = []
        self._lock = asyncio.Lock()

    def add(
        self,
        what: str,
        back: Callable[[], Awaitable[None]],
        again: Callable[[], Awaitable[None]],
        moot: Callable[[], bool] = _never,
    ) -> None:
        """Something was done; what was undone before cannot be done again from now on."""
        self._done.append(Step(what, back, again, moot))
        self._undone.clear()

    def no_redo(self) -> None:
        """Something was done that cannot be taken back."""
        self._undone.clear()

    @property
    def next(self) -> str | None:
        """What `undo` would take back."""
        while self._done and self._done[-1].moot():
            self._done.pop()
        return self._done[-1].what if self._done else None

    @property
    def next_again(self) -> str | None:
        """What `redo` would do again."""
        return self._undone[-1].what if self._undone else None

    async def undo(self) -> str | None:
        """Take the last step back and say what it was; None when there is none. A step that cannot be taken back now
        (StoreError, say) can be tried again; one that never can (CannotUndo) goes."""
        async with self._lock:
            if self.next is None:
                return None
            step = self._done[-1]
            try:
                await step.back()
            except CannotUndo:
                self._done.remove(step)
                raise
            self._done.remove(step)
            self._undone.append(step)
            return step.what

    async def redo(self) -> str | None:
        """Do again what was taken back last, and say what it was; None when there is nothing."""
        async with self._lock:
            if not self._undone:
                return None
            step = self._undone[-1]
            try:
                await step.again()
            except CannotUndo:
                self._undone.remove(step)
                raise
            self._undone.remove(step)
            self._done.append(step)
            return step.what


def exchanged(
    now: Sequence[Message], out: Sequence[Message], back: Sequence[Message], order: Sequence[Message]
) -> list[Message]:
    """`now` without `out` and with `back`, each of these behind what it stood behind in `order`."""
    gone = set(out)
    result = [message for message in now if message not in gone]
    present = set(result)
    for message in back:
        if message in present:
            continue
        stood_behind = order[: order.index(message)]
        before = next((one for one in reversed(stood_behind) if one in present), None)
        result.insert(result.index(before) + 1 if before is not None else 0, message)
        present.add(message)
    return result
