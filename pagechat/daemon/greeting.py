"""The first words with a client, and the answer to a frame that is no message. Pure: no socket, no request."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from engine import protocol
from engine.protocol import Message, ProtocolError
from pagechat import __version__
from pagechat.protocol import MAX_NAME, Failed, Rejected, Welcome


def greet(version: int, telemetry: str, telemetry_port: int | None = None) -> Welcome | Rejected:
    """The answer to `Hello`. `telemetry`: the endpoint to subscribe to; `telemetry_port`: the same over TCP."""
    if version != protocol.VERSION:
        return Rejected(
            code="version_mismatch",
            message=f"the daemon (pagechat {__version__}) speaks protocol version {protocol.VERSION}, "
            f"the client {version}; stop the daemon with `pagechat-daemon stop`, or use its version",
        )
    return Welcome(
        version=protocol.VERSION,
        daemon_version=__version__,
        pid=os.getpid(),
        telemetry=telemetry,
        telemetry_port=telemetry_port,
    )


def refuse(frame: bytes, error: ProtocolError) -> Message:
    """Says what can be said of a bad frame: to the request, if it at least names one, else to the client."""
    try:
        found: Any = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        found = {}
    request_id, ticket, version = found.get("request_id"), found.get("ticket"), found.get("version")
    if found.get("type") == "Hello" and type(version) is int and version != protocol.VERSION:
        return greet(version, "")  # a Hello of another version may have other fields
    if found.get("type") == "Chat" and isinstance(request_id, str):
        return Failed(request_id=request_id[:MAX_NAME], code="bad_request", message=str(error), param=error.field)
    ticket = ticket if type(ticket) is int and abs(ticket) < 2**63 else None
    return Rejected(code="bad_request", message=str(error), ticket=ticket)
