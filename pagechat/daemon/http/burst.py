"""Connections whose writes of one turn of the loop leave together.

A step of the engine brings a token to every stream at once. Sent one by one, between the making of one event and the
next, each send would wake its reader, and waking costs more than sending; and an answer's last text, its end and the
end of its body would be four sends. So writes are kept until everything that is ready in this turn has been made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


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

    def __init__(self, outbox: Outbox, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._outbox = outbox

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Burst(transport, self._outbox))  # type: ignore[arg-type]
        self.app_state = self.app_state | {"body_writer": self._body_writer}

    def _body_writer(self) -> Callable[[bytes], None]:
        """For the body, of no promised length, of the response that has begun. Does at once what ASGI's `send` does for
        a task that can wait: a client that does not read makes nobody wait, and what it has not read is kept."""
        cycle, write = self.cycle, self.transport.write
        chunked = (self.conn.their_http_version or b"") >= b"1.1"  # as h11 decides when the response begins

        def write_body(data: bytes) -> None:
            if data and not cycle.disconnected:
                write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)

        return write_body


class _Burst:
    """A transport before another one, whose everything else it is."""

    def __init__(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        self._transport, self._outbox = transport, outbox
        self._kept: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._kept:
            self._outbox.add(self)
        self._kept.append(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        if self._kept:
            data, self._kept = b"".join(self._kept), []
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
