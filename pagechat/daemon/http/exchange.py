"""The generations of one HTTP request, as one receiver: what they say, in the order it is said, and its client's going.

The client's going is watched from the beginning, so that a request whose client left in the queue is dropped there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol import Accepted, Delta, Failed, Finished, Message
from pagechat.daemon.answering import Answering
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Generation


class ClientGone(Exception):
    """Nobody reads the answer any more."""


@dataclass(frozen=True, slots=True)
class Said:
    """A delta or an end, of one of the answers."""

    prompt: int
    """Which of the generations."""
    message: Delta | Finished


class Exchange:
    """Use it as a context; leaving it drops what still runs. Compares by identity, as a receiver."""

    def __init__(self, answering: Answering, receive: Callable[[], Awaitable[Any]]) -> None:
        """`receive`: of the ASGI request, whose body has been read."""
        self._answering = answering
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._watching = asyncio.create_task(self._watch(receive))
        self._early: list[Said] = []
        self._open = 0

    def send(self, message: Message) -> bool:
        """As a receiver: an answer is never longer than the context, so neither is what waits here."""
        self._messages.put_nowait(message)
        return True

    async def begin(self, generations: Sequence[Generation]) -> None:
        """Returns when every generation was accepted and something was said, so an error still has a status of its
        own. Raises RequestError, ClientGone."""
        for generation in generations:
            self._answering.submit(self, generation)
            self._open += generation.n
        unheard = len(generations)
        while unheard or not self._early:
            message = await self._next()
            if isinstance(message, Accepted):
                unheard -= 1
            elif isinstance(message, Delta | Finished):
                self._early.append(Said(int(message.request_id), message))

    async def said(self) -> AsyncIterator[Said]:
        """Everything up to the last end. Raises RequestError, ClientGone."""
        while self._open or self._early:
            if self._early:
                said = self._early.pop(0)
            else:
                message = await self._next()
                if not isinstance(message, Delta | Finished):
                    continue
                said = Said(int(message.request_id), message)
            self._open -= isinstance(said.message, Finished)
            yield said

    def close(self) -> None:
        """Whatever still runs is aborted. A second call does nothing."""
        self._watching.cancel()
        self._answering.drop(self)

    async def _next(self) -> Message:
        message = await self._messages.get()
        if message is None:
            raise ClientGone
        if isinstance(message, Failed):
            raise RequestError(message.code, message.message, message.param)
        return message

    async def _watch(self, receive: Callable[[], Awaitable[Any]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._answering.drop(self)
        self._messages.put_nowait(None)
