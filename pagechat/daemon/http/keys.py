"""The API keys of the HTTP door: a file that holds their hashes, never the keys.

A key is 32 random bytes, so its plain SHA-256 tells nothing about it. With its name (the tenant's label in `usage`)
stands a salt: requests of different keys never share cached blocks, so nobody can learn from the time an answer takes
what another asked. The file is read again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from engine.protocol import Priority
from pagechat.daemon import private_file
from pagechat.seldom import Seldom
from pagechat.store import data_dir

log = logging.getLogger(__name__)

PREFIX = "pc-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeysError(Exception):
    """The key file, or what is to be done with it, is not right; the message says how."""


Scope = Literal["use", "pin", "observe", "admin"]
"""use: ask for answers and tokens, keep sessions. pin: keep them whatever happens. observe: what the daemon does for
everybody (metrics, the block map, the scheduler). admin: all of this, for every key's requests and sessions."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the file. An entry of an older file has the defaults."""

    name: str
    sha256: str
    salt: str
    """Hex; of the key's prefix cache."""
    created: int
    max_concurrent: int | None = None
    """Requests at a time; None: as many as there are."""
    min_priority: Priority = 0
    """The lowest number, so the most urgent, that its requests may ask for; one that asks for none has 0, or this where
    it is higher. As with `nice`, nobody goes before the others without being allowed to."""

    scopes: tuple[Scope, ...] = ("use", "pin")
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    """Of prompts and answers together."""
    pin_share: Share = 0.25
    """Of the block pool, that its pinned sessions may hold."""
    pool_share: Share = 1.0
    """Of the block pool, that its requests under way may hold when one more comes in."""

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    @property
    def cache_salt(self) -> bytes:
        return bytes.fromhex(self.salt)


ANYBODY = Key(name="", sha256="", salt="", created=0, min_priority=-(2**31), scopes=("admin",), pin_share=1.0)
"""Who asks where no key is needed."""


class Keys:
    """The file as it is now. Without a file nobody needs a key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._broken = Seldom()
        self._keys: tuple[Key, ...] = ()
        self.refresh()

    @property
    def required(self) -> bool:
        """A key is asked for: the file is there, be it empty."""
        self.refresh()
        return self._stamp is not None

    def find(self, secret: str) -> Key | None:
        """Whose key this is. Every hash is compared, in constant time."""
        given = _hash(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, given):
                found = key
        return found

    def refresh(self) -> None:
        """A file that goes away or breaks while it is in use changes nothing: nobody gets in because of that.

        Raises KeysError when it cannot be read the first time.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        # the time of its last change of any kind: a chmod too, and another file in its place
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
        if stamp == self._stamp:
            return
        try:
            self._keys = tuple(load(self._path))
        except KeysError as error:
            if self._stamp is None:
                raise
            self._broken.log(log, logging.ERROR, "the API keys stay as they were: %s", error)
            return  # and it is tried again at the next request
        self._stamp = stamp


def default_path() -> Path:
    return data_dir().absolute() / "keys.json"


def load(path: Path) -> list[Key]:
    """Raises KeysError."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise KeysError(f"{path} can be read by others; make it private with: chmod 600 {path}")
            return msgspec.json.decode(file.read(), type=list[Key])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise KeysError(f"{path} cannot be read: {error}") from None


def add(path: Path, name: str, **fields: Any) -> str:
    """A new key, which nobody can read again. `fields`: of `Key`, those that are not to have its defaults. Raises
    KeysError."""
    if not _NAME.fullmatch(name):
        raise KeysError("a key's name has 1 to 64 letters, digits, dots, hyphens and underscores")
    secret = PREFIX + secrets.token_urlsafe(32)
    salt, created = secrets.token_hex(16), int(time.time())
    entry = _checked(Key(name=name, sha256=_hash(secret), salt=salt, created=created, **fields))
    with private_file.alone(path):
        known = load(path)
        if any(key.name == name for key in known):
            raise KeysError(f"there is a key {name!r} already; remove it first, or choose another name")
        private_file.write(path, [*known, entry])
    return secret


def change(path: Path, name: str, **fields: Any) -> Key:
    """The same key with other fields. Raises KeysError when there is no such key."""
    with private_file.alone(path):
        known = load(path)
        if not any(key.name == name for key in known):
            raise KeysError(f"there is no key {name!r}")
        changed = [_checked(msgspec.structs.replace(key, **fields)) if key.name == name else key for key in known]
        private_file.write(path, changed)
    return next(key for key in changed if key.name == name)


def _checked(key: Key) -> Key:
    """Raises KeysError for values that no key has."""
    try:
        return msgspec.convert(msgspec.to_builtins(key), Key)
    except msgspec.ValidationError as error:
        raise KeysError(str(error)) from None


def remove(path: Path, name: str) -> None:
    """Raises KeysError when there is no such key."""
    with private_file.alone(path):
        known = load(path)
        left = [key for key in known if key.name != name]
        if len(left) == len(known):
            raise KeysError(f"there is no key {name!r}")
        private_file.write(path, left)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
