"""Requests that were with an engine when it ended. One that was alone with two is not given to a third.

A client that tries again whatever failed would else end one engine after the other, and everybody's answers with them.
Of several requests that were with an engine nobody knows which one ended it: each bears its share of the guilt, so it
takes as many ends more, and one that was only there beside the guilty one is cleared as soon as it is answered once.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from pagechat.daemon.errors import RequestError
from pagechat.daemon.requests import Request

DEATHS = 2
"""Least, and the shares of guilt must add up to a whole end."""
FORGOTTEN_S = 600.0
"""After so long it may be tried again: the engine may be another version, and the machine less busy."""

_REMEMBERED = 1024


class Suspects:
    """The newest of them, by what they asked: prompt, options, answers. Not by who asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[bytes, list[tuple[float, float]]] = OrderedDict()
        """(when an engine ended that had it, its share of the guilt), by its digest."""

    def check(self, request: Request) -> None:
        """Raises RequestError for one that is not to be tried again."""
        seen = self._recent(_digest(request)) if self._seen else []
        if len(seen) >= DEATHS and sum(share for _, share in seen) > 0.999:
            raise RequestError(
                "bad_request",
                f"{len(seen)} engines ended while they computed this request; it is not tried again for "
                f"{FORGOTTEN_S / 60:.0f} minutes, unless something of it is changed",
            )

    def saw_death(self, requests: Sequence[Request]) -> None:
        """The engine that had these, and no others, has ended."""
        for request in requests:
            digest = _digest(request)
            self._seen[digest] = [*self._recent(digest), (self._clock(), 1 / len(requests))]
            self._seen.move_to_end(digest)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def saw_end(self, request: Request) -> None:
        """It was answered."""
        if self._seen:
            self._seen.pop(_digest(request), None)

    def _recent(self, digest: bytes) -> list[tuple[float, float]]:
        oldest = self._clock() - FORGOTTEN_S
        return [(moment, share) for moment, share in self._seen.get(digest, ()) if moment > oldest]


def _digest(request: Request) -> bytes:
    wants = request.wants
    return hashlib.sha256(msgspec.msgpack.encode((request.prompt, wants.options, wants.n, wants.beam))).digest()
