"""Connections whose writes of one turn of the loop leave together, and which take and keep a bounded amount.

A step of the engine brings a token to every stream at once. Sent one by one, between the making of one event and the
next, each send would wake its reader, and waking costs more than sending; and an answer's last text, its end and the
end of its body would be four sends. So writes are kept until everything that is ready in this turn has been made.

What comes is taken in pieces, one a turn: a body in chunks of one byte is a thousand times the work of a whole one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from pagechat.daemon.http.connections import Connections, Patience, Progress
from pagechat.daemon.http.refusal import RETRY_S, ApiError

MOST_UNREAD = 16 * 2**20
"""Bytes of a stream that are kept for a client that reads more slowly than the model writes."""
_PIECE = 16 * 2**10
"""Bytes of what has come that are looked at in one turn of the loop."""


class Outbox:
    """What is kept, of all connections of one loop."""

    def __init__(self) -> None:
        self._due: list[_Burst] = []

    def add(self, connection: _Burst) -> None:
        """Send what this one keeps, behind the callbacks that are ready now."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(connection)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            connection.flush()


class BurstProtocol(H11Protocol):
    """uvicorn's protocol over such a connection."""

    address = ""

    def __init__(self, outbox: Outbox, places: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._outbox, self._places = outbox, places
        self._burst: _Burst
        self._inbox = bytearray()
        self._looking = self._refused = False
        self._received = 0
        self._since = time.monotonic()
        """When the connection, or what has come of a request's head, began."""
        self._body, self._reader = Progress(), Progress()

    # -- its place among the others ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._burst = _Burst(transport, self._outbox)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(self._burst)  # type: ignore[arg-type]
        if not self._places.enter(self):
            self._refused = True
            transport.write(_NO_PLACE)
            transport.close()
            return
        self.app_state = self.app_state | {"body_writer": self._body_writer}

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        self._inbox.clear()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def overdue(self, now: float, patience: Patience) -> bool:
        unread = self._burst.unread
        if self._reader.stuck(now, unread > 0, self._burst.written - unread, patience.reading_s):
            return True
        if self.cycle is None or self.cycle.response_complete:
            begun = self.cycle is None or self.conn.trailing_data[0] or self._inbox
            return bool(begun) and now - self._since > patience.request_s
        coming = self.cycle.more_body and not self.flow.read_paused  # paused: it is we who do not read
        return self._body.stuck(now, coming, self._received, patience.body_s)

    def drop(self) -> None:
        self._burst.abort()

    # -- what comes --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.IDLE:
            self._since = time.monotonic()
        self._received += len(data)
        self._inbox += data
        if not self._looking:
            self._look()

    def _look(self) -> None:
        self._looking = False
        if self._burst.is_closing():
            return
        piece = bytes(self._inbox[:_PIECE])
        del self._inbox[:_PIECE]
        if self._inbox:
            self._looking = True
            self._burst.hold()
            self.loop.call_soon(self._look)
        else:
            self._burst.let_go()
        super().data_received(piece)

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        self._places.waits(self)
        super().on_response_complete()

    # -- what goes ---------------------------------------------------------------------------------

    def _body_writer(self) -> Callable[[bytes], None]:
        """For the body, of no promised length, of the response that has begun. Does at once what ASGI's `send` does for
        a task that can wait: a client that does not read makes nobody wait, and what it has not read is kept, up to a
        bound; then it is let go."""
        cycle, burst = self.cycle, self._burst
        chunked = (self.conn.their_http_version or b"") >= b"1.1"  # as h11 decides when the response begins

        def write_body(data: bytes) -> None:
            if data and not cycle.disconnected:
                burst.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                if burst.unread > MOST_UNREAD:
                    burst.abort()

        return write_body


class _Burst:
    """A transport before another one, whose everything else it is."""

    def __init__(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        self._transport, self._outbox = transport, outbox
        self._kept: list[bytes] = []
        self._held = self._paused = False
        self.written = 0
        """Bytes given to the transport, read or not."""

    @property
    def unread(self) -> int:
        """Bytes that the client's machine has not taken."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if not self._kept:
            self._outbox.add(self)
        self._kept.append(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._kept.clear()
        self._transport.abort()

    def flush(self) -> None:
        if self._kept:
            data, self._kept = b"".join(self._kept), []
            self.written += len(data)
            self._transport.write(data)

    def hold(self) -> None:
        """Takes nothing more until `let_go`, whoever else resumes."""
        self._held = True
        self._transport.pause_reading()

    def let_go(self) -> None:
        self._held = False
        self._read_or_not()

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if not self._held and not self._paused:
            self._transport.resume_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _no_place() -> bytes:
    error = ApiError(503, "this daemon has as many connections as it can; try again later", code="connections")
    body = msgspec.json.encode(error.body)
    head = f"retry-after: {RETRY_S}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"HTTP/1.1 503 Service Unavailable\r\n{head}connection: close\r\n\r\n".encode() + body


_NO_PLACE = _no_place()
