"""Server-sent events: `data: JSON`, a blank line between, `data: [DONE]` at the end.

A stream that has begun has the status 200 already, so an error in it is an event of its own, with OpenAI's error
body, and the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.call import Call
from pagechat.daemon.http.errors import from_request_error
from pagechat.daemon.http.exchange import ClientGone, Listener
from pagechat.daemon.http.refusal import ApiError
from pagechat.protocol import Delta, Finished

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_encoder = msgspec.json.Encoder()


def event(data: Any, name: str | None = None) -> bytes:
    """One event. Text that is no valid Unicode cannot come here: it is made by a tokenizer's decoder."""
    prefix = b"" if name is None else b"event: " + name.encode() + b"\n"
    return prefix + b"data: " + _encoder.encode(data) + b"\n\n"


class Envelope:
    """What all events of a stream have in common, written once: OpenAI's object around one choice."""

    def __init__(self, whole: dict[str, Any], more: dict[str, Any]) -> None:
        """`whole` ends with an empty list of choices; `more` are fields behind it."""
        self._head = b"data: " + _encoder.encode(whole).removesuffix(b"]}")
        self._tail = (b"]," + _encoder.encode(more)[1:] if more else b"]}") + b"\n\n"

    def event(self, choice: dict[str, Any]) -> bytes:
        return self._head + _encoder.encode(choice) + self._tail

    def texts(self, choice: dict[str, Any]) -> Callable[[str], bytes]:
        """Makes the events of a choice in which nothing changes but its text: the one string in it that is empty."""
        before, after = _encoder.encode(choice).split(b'""')
        head, tail = self._head + before, after + self._tail
        return lambda text: head + _encoder.encode(text) + tail


class Events(Protocol):
    """The events of one stream."""

    def begin(self) -> bytes:
        """Those before anything is said."""
        ...

    def told(self, index: int, message: Delta | Finished) -> bytes:
        """Those of what was said of a choice."""
        ...

    def end(self) -> bytes:
        """Those after the last answer's end."""
        ...


class EventStream(Response):
    """A response made of events as they come."""

    def __init__(self, call: Call, events: Events) -> None:
        """Closes the call when the stream has ended, however it ends."""
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._call, self._events = call, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = self._events.told
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            write = scope["state"]["body_writer"]()
            write(self._events.begin())
            last = await self._follow(lambda index, message: write(told(index, message)))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        except ClientGone:
            pass
        finally:
            self._call.close()

    async def _follow(self, listener: Listener) -> bytes:
        """The events that end the stream, well or not. Raises ClientGone."""
        try:
            await self._call.follow(listener)
            return self._events.end()
        except RequestError as error:
            return event(from_request_error(error).body)
        except ClientGone:
            raise
        except Exception:
            log.exception("a stream failed")
            return event(ApiError(500, "the daemon failed on this request; its log says more", code="internal").body)
