"""Work that grows with what a client has sent: in threads of its own, so many at a time, and each tenant in its turn.

The loop that tells every stream its tokens does none of it. Small requests do not come here, so they never wait behind
large ones; and of those who send large ones nobody waits for more than one piece of each other's work.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pagechat.daemon.errors import RequestError

T = TypeVar("T")

THREADS = 1 if (os.cpu_count() or 1) < 4 else 2
"""More would only take the interpreter from the loop: most of this work holds its lock."""
MOST_WAITING = 32
"""Pieces of work of one tenant that wait for their turn."""


class Heavy:
    """Lives in the loop that made it."""

    def __init__(self, threads: int = THREADS, most_waiting: int = MOST_WAITING) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="heavy")
        self._free = threads
        self._most_waiting = most_waiting
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant; the one whose turn is next comes first."""

    async def run(self, tenant: str, work: Callable[..., T], *arguments: object) -> T:
        """What `work` returns or raises. Raises RequestError (busy) where this tenant's work has piled up."""
        theirs = self._waiting.get(tenant, ())
        if len(theirs) >= self._most_waiting:
            raise RequestError("busy", f"{len(theirs)} large requests wait already; try again later")
        return await self.finish(tenant, work, *arguments)

    async def finish(self, tenant: str, work: Callable[..., T], *arguments: object) -> T:
        """As `run`, for what ends a request that was let in: it is never refused."""
        await self._turn(tenant)
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        running.add_done_callback(self._done)  # also where nobody waits for it any more: the thread works on
        return await running

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, tenant: str) -> None:
        if self._free:
            self._free -= 1
            return
        theirs = self._waiting.setdefault(tenant, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        theirs.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_on()  # its turn had come
            raise

    def _done(self, running: asyncio.Future[T]) -> None:
        if not running.cancelled():
            running.exception()  # whoever waits for it is told; where nobody does, there is nothing to say
        self._give_on()

    def _give_on(self) -> None:
        """To the next tenant's next piece of work that somebody still waits for."""
        while self._waiting:
            tenant, theirs = next(iter(self._waiting.items()))
            turn = theirs.popleft()
            if not theirs:
                del self._waiting[tenant]
            if turn.done():
                continue
            if theirs:  # at the end of the round
                self._waiting[tenant] = self._waiting.pop(tenant)
            turn.set_result(None)
            return
        self._free += 1
