"""Who may reach the daemon over TCP: its own key pair, and the public keys of its clients, in one file.

The file is read for each connection, so a client that is removed cannot come back; a connection that is open stays.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.utils.z85

from pagechat.daemon import private_file
from pagechat.remote import Remote
from pagechat.seldom import Seldom
from pagechat.sockets import LoopSocket
from pagechat.store import data_dir

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ZAP = "inproc://zeromq.zap.01"
"""Where libzmq asks who may connect (ZeroMQ RFC 27)."""


class CurveError(Exception):
    """The file, or what is to be done with it, is not right; the message says how."""


class Keyring(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Keys in Z85."""

    public: str
    secret: str
    clients: dict[str, str] = {}
    """Public keys by the clients' names."""


def default_path() -> Path:
    return data_dir().absolute() / "curve.json"


def load(path: Path) -> Keyring | None:
    """None: there is none yet. Raises CurveError."""
    try:
        if path.stat().st_mode & 0o077:
            raise CurveError(f"{path} can be read by others; make it private with: chmod 600 {path}")
        return msgspec.json.decode(path.read_bytes(), type=Keyring)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise CurveError(f"{path} cannot be read: {error}") from None


def add(path: Path, name: str, url: str) -> Remote:
    """A new client, whose secret key stands nowhere but in what is returned. Raises CurveError."""
    if not _NAME.fullmatch(name):
        raise CurveError("a client's name has 1 to 64 letters, digits, dots, hyphens and underscores")
    public, secret = _key_pair()
    with private_file.alone(path):
        ring = load(path) or _new_ring()
        if name in ring.clients:
            raise CurveError(f"there is a client {name!r} already; remove it first, or choose another name")
        private_file.write(path, msgspec.structs.replace(ring, clients=ring.clients | {name: public}))
    return Remote(url=url, server=ring.public, public=public, secret=secret)


def remove(path: Path, name: str) -> None:
    """Raises CurveError when there is no such client."""
    with private_file.alone(path):
        ring = load(path)
        if ring is None or name not in ring.clients:
            raise CurveError(f"there is no client {name!r}")
        left = {other: key for other, key in ring.clients.items() if other != name}
        private_file.write(path, msgspec.structs.replace(ring, clients=left))


def _new_ring() -> Keyring:
    public, secret = _key_pair()
    return Keyring(public=public, secret=secret)


def _key_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class Gatekeeper:
    """Answers libzmq's question who may connect, for the sockets of one context that `guard` was called with."""

    def __init__(self, context: zmq.Context[Any], path: Path) -> None:
        """Raises CurveError where there is no client that could come."""
        ring = load(path)
        if ring is None or not ring.clients:
            raise CurveError(
                "no client is known that could come over TCP; make one with `pagechat-daemon curve add NAME HOST:PORT`"
            )
        self._path, self._ring = path, ring
        self._unreadable = Seldom()
        socket = context.socket(zmq.REP)
        socket.bind(_ZAP)
        self._link = LoopSocket(socket, self._on_question)

    def guard(self, socket: zmq.Socket[Any]) -> None:
        """What this socket binds from now on is for known clients only."""
        socket.curve_server = True
        socket.curve_secretkey = self._ring.secret.encode()
        socket.zap_domain = b"pagechat"

    def close(self) -> None:
        self._link.close()

    def _on_question(self, frames: list[bytes]) -> None:
        """Answers in every case: a REP socket that owes an answer takes no further question."""
        version, request_id, _domain, _address, _identity, mechanism, *credentials = frames
        name, status, words = None, b"400", b"this key is not known"
        try:
            name = self._name_of(credentials[0]) if mechanism == b"CURVE" and credentials else None
        except CurveError as error:
            status, words = b"500", b"the daemon cannot read who may come; its log says why"
            self._unreadable.log(log, logging.ERROR, "nobody can be let in over TCP: %s", error)
        except Exception:
            status, words = b"500", b"the daemon failed on this question; its log says more"
            self._unreadable.exception(log, "nobody can be let in over TCP")
        if name is not None:
            status, words = b"200", b"OK"
        self._link.send(version, request_id, status, words, (name or "").encode(), b"")

    def _name_of(self, key: bytes) -> str | None:
        ring = load(self._path)
        public = zmq.utils.z85.encode(key).decode()
        return next((name for name, known in ring.clients.items() if known == public), None) if ring else None
