"""A daemon on another machine: a run directory that holds `remote.json` leads there, over TCP with CURVE.

CURVE encrypts, and both ends prove who they are: the file has the daemon's public key and a key pair that the daemon
knows. Whoever has the file is the daemon's user; so only this user may read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq

from pagechat.rundir import RunDirError

FILE = "remote.json"

HEARTBEAT_MS = 5_000
"""Between two signs of life of a connection beyond this machine; after three without one it has ended."""


class Remote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `pagechat-daemon curve add` prints. Keys in Z85."""

    url: str
    """tcp://HOST:PORT, as this machine reaches it."""
    server: str
    public: str
    secret: str

    def secure(self, socket: zmq.Socket[Any]) -> None:
        """From its next connection on the socket speaks with this daemon only."""
        socket.curve_serverkey = self.server.encode()
        socket.curve_publickey = self.public.encode()
        socket.curve_secretkey = self.secret.encode()
        socket.ipv6 = True
        keep_alive(socket)

    def telemetry(self, port: int) -> str:
        """The endpoint of its telemetry."""
        host, _, _ = self.url.rpartition(":")
        return f"{host}:{port}"


def keep_alive(socket: zmq.Socket[Any]) -> None:
    """A peer that vanished without a word is noticed."""
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = 3 * HEARTBEAT_MS


def remote(run_dir: Path) -> Remote | None:
    """Where this run directory leads; None: its daemon is on this machine. Raises RunDirError."""
    path = run_dir / FILE
    try:
        if path.stat().st_mode & 0o077:
            raise RunDirError(f"{path} can be read by others; make it private with: chmod 600 {path}")
        found = msgspec.json.decode(path.read_bytes(), type=Remote)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RunDirError(f"{path} cannot be read: {error}") from None
    place = urlsplit(found.url)
    if place.scheme != "tcp" or not place.hostname or not place.port:
        raise RunDirError(f"{path}: url must be tcp://HOST:PORT, not {found.url!r}")
    if any(len(key) != 40 for key in (found.server, found.public, found.secret)):
        raise RunDirError(f"{path}: its keys are incomplete; make it anew with `pagechat-daemon curve add`")
    return found
