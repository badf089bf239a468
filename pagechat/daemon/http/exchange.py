"""The generations of one HTTP request, as one receiver: what they say, in the order it is said, and its client's going.

What is said is passed on in the very call that brings it: a step of the engine has a word for every stream, and a task
woken for each would cost more than all that is done with the word.

The client's going is watched from the beginning, so that a request whose client left in the queue is dropped there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from engine.protocol import Message
from pagechat.daemon.answering import Answering
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Generation
from pagechat.daemon.requests import Request
from pagechat.protocol import Accepted, Delta, Failed, Finished


class ClientGone(Exception):
    """Nobody reads the answer any more."""


Listener = Callable[[int, Delta | Finished], None]
"""Is told which of the generations, and a delta or an end of one of its answers."""


class Exchange:
    """`close` it in every case; that drops what still runs. Compares by identity, as a receiver."""

    def __init__(self, answering: Answering, receive: Callable[[], Awaitable[Any]]) -> None:
        """`receive`: of the ASGI request, whose body has been read."""
        self._answering = answering
        self._early: list[Message] = []
        """What was said before somebody listened."""
        self._arrived = asyncio.Event()
        self._listener: Listener | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = 0
        self._made = 0
        """Tokens of answers that have ended."""
        self._dropped: list[Request] = []
        """Requests whose client went before they ended."""
        self._watching = asyncio.create_task(self._watch(receive))

    def send(self, message: Message) -> bool:
        """As a receiver: an answer is never longer than the context, so neither is what is kept here."""
        if self._listener is None:
            self._early.append(message)
            self._arrived.set()
        else:
            self._tell(self._listener, message)
        return True

    async def begin(self, generations: Sequence[Generation]) -> None:
        """Returns when every generation was accepted and something was said, so an error still has a status of its
        own. Raises RequestError, ClientGone."""
        for generation in generations:
            self._answering.submit(self, generation)
            self._open += generation.n
        begun = False
        while not begun:
            await self._arrived.wait()
            self._arrived.clear()
            if self._end.done():
                self._end.result()  # its client has gone
            for message in self._early:
                _check(message)
            accepted = sum(isinstance(message, Accepted) for message in self._early)
            begun = accepted == len(generations) and accepted < len(self._early)

    async def follow(self, listener: Listener) -> None:
        """Tells the listener everything up to the last end, as it comes. Raises RequestError, ClientGone, and what the
        listener raises."""
        self._listener = listener
        for message in self._early:
            self._tell(listener, message)
        self._early.clear()
        await self._end

    def close(self) -> int:
        """Whatever still runs is aborted. Returns the tokens that were made. A second call does nothing."""
        self._watching.cancel()
        dropped = self._answering.drop(self) + self._dropped
        self._end.cancel()
        made = self._made + sum(answer.tokens for request in dropped for answer in request.open_answers)
        self._made, self._dropped = 0, []
        return made

    def _tell(self, listener: Listener, message: Message) -> None:
        if self._end.done():
            return
        try:
            if isinstance(message, (Delta, Finished)):
                listener(int(message.request_id), message)
                if isinstance(message, Finished):
                    self._open -= 1
                    self._made += message.usage.completion_tokens
            else:
                _check(message)
        except Exception as error:  # whose call this is has other requests to care for; `follow` raises it
            self._end.set_exception(error)
        else:
            if not self._open:
                self._end.set_result(None)

    async def _watch(self, receive: Callable[[], Awaitable[Any]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._dropped += self._answering.drop(self)
        if not self._end.done():
            self._end.set_exception(ClientGone())
            self._end.exception()  # marks it as seen: a call that is being closed asks no more
        self._arrived.set()


def _check(message: Message) -> None:
    """Raises RequestError."""
    if isinstance(message, Failed):
        raise RequestError(message.code, message.message, message.param)
