"""The history file as a file: opened, locked, written in transactions, found again. It knows no chats.

A write takes the file's write lock at its begin and waits for another process's write; `hurry` cuts such waits short
for a program that is about to end. A transaction is all or nothing: what failed half-way has not happened.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pagechat import store_schema

_BUSY = 5
"""SQLITE_BUSY: another connection holds the lock."""


class StoreError(Exception):
    """The history file could not be read or written."""


class StoreReplaced(StoreError):
    """The history file was deleted or replaced while open; a new, empty one has been started in its place."""


class StoreFile:
    """One connection to the file, usable from several threads, one at a time."""

    def __init__(self, path: Path, busy_timeout_s: Callable[[], float]) -> None:
        """`busy_timeout_s`: how long a write waits for another process's write. Raises StoreError."""
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.RLock()
        self._hurry = threading.Event()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        with self._reporting():
            self._open()

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def hurry(self) -> None:
        """From now on nothing waits for another process's write: it fails at once. From any thread."""
        self._hurry.set()

    def data_version(self) -> int:
        """Another number whenever another connection has changed the file. Costs no disk access."""
        with self._reading() as db:
            version: int = db.execute("PRAGMA data_version").fetchone()[0]
        return version

    @contextmanager
    def together(self) -> Iterator[None]:
        """All writes within are one transaction: either all of them happen, or none."""
        with self._writing():
            yield

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._reporting():
            yield self._connection()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._reporting():
            db = self._connection()
            if db.in_transaction:  # part of a larger one
                yield db
                return
            self._begin(db)
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk may have ended it already
                    db.execute("ROLLBACK")
                raise

    def _begin(self, db: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self._busy_timeout_s()
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                waits = error.sqlite_errorcode & 0xFF == _BUSY and time.monotonic() < deadline
                if not waits or self._hurry.is_set():
                    raise

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._open()
        elif _identity(self.path) != self._file:
            # Writes to an unlinked file succeed and are lost: never go on with one.
            self.close()
            self._open()
            raise StoreReplaced(f"{self.path} was deleted or replaced; a new history file has been started")
        if self._db is None:
            raise StoreError(f"{self.path} is closed")
        return self._db

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            # Created here, not by SQLite: the mode is right from the first byte on.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            if not self.path.exists():
                raise
            # It may only be read: what is in it can be seen, and each write says why it fails.
        db = sqlite3.connect(self.path, timeout=self._busy_timeout_s(), check_same_thread=False, isolation_level=None)
        try:
            db.execute("PRAGMA foreign_keys = ON")
            found = store_schema.prepare(db)
            if found > store_schema.VERSION:
                raise StoreError(
                    f"{self.path} was written by a newer pagechat "
                    f"(version {found}, this one knows {store_schema.VERSION})"
                )
            self._opened(db)
            db.execute("PRAGMA busy_timeout = 50")  # `_begin` waits longer, and can be hurried
        except BaseException:
            db.close()
            raise
        self._db, self._file = db, _identity(self.path)

    def _opened(self, db: sqlite3.Connection) -> None:
        """What is to be done once, whenever the file is opened."""


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
