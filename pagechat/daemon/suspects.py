"""Requests that were with an engine when it ended. One that has seen two ends is not given to a third engine.

A client that tries again whatever failed would else end one engine after the other, and everybody's answers with them.
A request that was only there beside the guilty one is cleared as soon as it is answered once.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from pagechat.daemon.errors import RequestError
from pagechat.daemon.requests import Request

DEATHS = 2
FORGOTTEN_S = 600.0
"""After so long it may be tried again: the engine may be another version, and the machine less busy."""

_REMEMBERED = 1024


class Suspects:
    """The newest of them, by what they asked: prompt, options, answers. Not by who asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[bytes, list[float]] = OrderedDict()
        """When engines ended that had it, by its digest."""

    def check(self, request: Request) -> None:
        """Raises RequestError for one that is not to be tried again."""
        if self._seen and len(self._recent(_digest(request))) >= DEATHS:
            raise RequestError(
                "bad_request",
                f"{DEATHS} engines ended while they computed this request; it is not tried again for "
                f"{FORGOTTEN_S / 60:.0f} minutes, unless something of it is changed",
            )

    def saw_death(self, request: Request) -> None:
        """The engine that had it has ended."""
        digest = _digest(request)
        self._seen[digest] = [*self._recent(digest), self._clock()]
        self._seen.move_to_end(digest)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def saw_end(self, request: Request) -> None:
        """It was answered."""
        if self._seen:
            self._seen.pop(_digest(request), None)

    def _recent(self, digest: bytes) -> list[float]:
        oldest = self._clock() - FORGOTTEN_S
        return [moment for moment in self._seen.get(digest, ()) if moment > oldest]


def _digest(request: Request) -> bytes:
    wants = request.wants
    return hashlib.sha256(msgspec.msgpack.encode((request.prompt, wants.options, wants.n, wants.beam))).digest()
