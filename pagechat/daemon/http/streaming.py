"""Server-sent events: `data: JSON`, a blank line between, `data: [DONE]` at the end.

A stream that has begun has the status 200 already, so an error in it is an event of its own, with OpenAI's error
body, and the last one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.errors import from_request_error
from pagechat.daemon.http.exchange import ClientGone
from pagechat.daemon.http.refusal import ApiError

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_encoder = msgspec.json.Encoder()


def event(data: Any, name: str | None = None) -> bytes:
    """One event. Text that is no valid Unicode cannot come here: it is made by a tokenizer's decoder."""
    prefix = b"" if name is None else b"event: " + name.encode() + b"\n"
    return prefix + b"data: " + _encoder.encode(data) + b"\n\n"


class EventStream(Response):
    """A response made of events as they come."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        """`close` is called when the stream has ended, however it ends."""
        super().__init__(headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events, self._close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in _ending_well(self._events):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            pass
        finally:
            self._close()


async def _ending_well(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for chunk in events:
            yield chunk
    except RequestError as error:
        yield event(from_request_error(error).body)
    except ClientGone:
        raise
    except Exception:
        log.exception("a stream failed")
        yield event(ApiError(500, "the daemon failed on this request; its log says more", code="internal").body)
