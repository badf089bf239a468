"""Chat history in one SQLite file, shared by the app and `pagechat-daemon ask --session`.

It knows chats, messages and a few remembered settings of the app; it knows no screen and no engine.
Every write is its own transaction in WAL mode: what a call stored survives the death of the process.
A message being written is owned by the process that writes it (`writer`); when that process is gone, the
next `Store` to open the file turns the message into a stopped one and keeps its text.

A `Store` may be used from several threads. Failures are `StoreError`, with the path in it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import platformdirs

from pagechat import store_schema, store_search, writers

MessageStatus = Literal["streaming", "stopped", "complete", "error"]
Role = Literal["system", "user", "assistant"]

BUSY_TIMEOUT_S = 3.0
"""How long a write waits for another process's write before it is a `StoreError`."""

_QUEUE = "queue:"
"""Before the id of a chat: the key of its waiting prompts in `state`."""
_CHAT = "chats.id, title, chats.created, updated, settings, parent, forked_at, priority"


class StoreError(Exception):
    """The history file could not be read or written."""


class StoreReplaced(StoreError):
    """The history file was deleted or replaced while open; a new, empty one has been started in its place."""


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    created: float
    """Unix time, seconds; `updated` too."""
    updated: float
    settings: dict[str, Any] = {}
    """System prompt and sampling parameters that are not the model's own."""
    parent: str | None = None
    """The chat it was forked from."""
    forked_at: int | None = None
    """Messages it had in common with its parent then."""
    priority: int = 0
    """Of its requests: the lower is served first."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a search found."""

    chat: Chat
    message_id: int
    excerpt: str
    """The place, on one line; each found word stands between the characters of `store_search.FOUND`."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    role: Role
    content: str
    status: MessageStatus
    facts: dict[str, Any]
    """Counts and timings of an answer, or why it failed."""


def data_dir() -> Path:
    """What is kept for this user: $PAGECHAT_DATA_DIR, else the user's data directory. It may not exist yet."""
    return Path(os.environ.get("PAGECHAT_DATA_DIR") or platformdirs.user_data_dir("pagechat", appauthor=False))


def default_path() -> Path:
    """Where the history lives: `chats.db` in the data directory."""
    return data_dir() / "chats.db"


class Store:
    """The history file. Creates it (mode 0600, its folder 0700) when there is none."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._writer = writers.own_name()
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        with self._reporting():
            self._open()

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    # -- chats ---------------------------------------------------------------------------------

    def create_chat(
        self, title: str, chat_id: str | None = None, parent: str | None = None, forked_at: int | None = None
    ) -> Chat:
        """A new chat; `chat_id` None makes a random id. An id that exists keeps its title and messages."""
        now = time.time()
        chat_id = chat_id or uuid.uuid4().hex
        with self._transaction() as db:
            db.execute("DELETE FROM chats WHERE id = ? AND deleted IS NOT NULL", (chat_id,))
            db.execute(
                "INSERT OR IGNORE INTO chats (id, title, created, updated, parent, forked_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (chat_id, title, now, now, parent, forked_at),
            )
        chat = self.find_chat(chat_id)
        if chat is None:
            raise StoreError(f"{self.path}: chat {chat_id} vanished as it was made")
        return chat

    def find_chat(self, chat_id: str) -> Chat | None:
        with self._transaction() as db:
            row = db.execute(f"SELECT {_CHAT} FROM chats WHERE id = ? AND deleted IS NULL", (chat_id,)).fetchone()  # noqa: S608
        return _chat(row) if row else None

    def chats(self) -> list[Chat]:
        """All chats, the last used first."""
        query = f"SELECT {_CHAT} FROM chats WHERE deleted IS NULL ORDER BY updated DESC, created DESC"  # noqa: S608
        with self._transaction() as db:
            rows = db.execute(query).fetchall()
        return [_chat(row) for row in rows]

    def rename_chat(self, chat_id: str, title: str) -> None:
        with self._transaction() as db:
            db.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id))

    def set_settings(self, chat_id: str, settings: dict[str, Any]) -> None:
        with self._transaction() as db:
            text = msgspec.json.encode(settings).decode()
            db.execute("UPDATE chats SET settings = ? WHERE id = ?", (text, chat_id))

    def set_priority(self, chat_id: str, priority: int) -> None:
        with self._transaction() as db:
            db.execute("UPDATE chats SET priority = ? WHERE id = ?", (priority, chat_id))

    def delete_chat(self, chat_id: str) -> None:
        """The chat and all its messages, for good."""
        with self._transaction() as db:
            db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
            db.execute("DELETE FROM state WHERE key = ?", (_QUEUE + chat_id,))

    def hide_chat(self, chat_id: str, hidden: bool = True) -> None:
        """Delete a chat such that it can come back (`hidden` False), until the next `purge`."""
        with self._transaction() as db:
            db.execute("UPDATE chats SET deleted = ? WHERE id = ?", (time.time() if hidden else None, chat_id))

    def purge(self) -> None:
        """Delete for good what was hidden: chats and messages."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM state WHERE key IN (SELECT ? || id FROM chats WHERE deleted IS NOT NULL)", (_QUEUE,)
            )
            db.execute("DELETE FROM chats WHERE deleted IS NOT NULL")
            db.execute("DELETE FROM messages WHERE deleted IS NOT NULL")

    def search(self, words: str, limit: int = 100) -> list[Hit]:
        """Messages that hold all the words, each at least as a beginning; the best first. Case and accents do not
        matter."""
        with self._transaction() as db:
            found = store_search.search(db, words, limit)
        chats = {chat.id: chat for chat in self.chats()} if found else {}
        return [Hit(chat=chats[chat], message_id=id_, excerpt=text) for id_, chat, text in found if chat in chats]

    # -- messages ------------------------------------------------------------------------------

    def messages(self, chat_id: str) -> list[StoredMessage]:
        """In the order they were written."""
        query = (
            "SELECT id, role, content, status, facts FROM messages WHERE chat_id = ? AND deleted IS NULL ORDER BY id"
        )
        with self._transaction() as db:
            rows = db.execute(query, (chat_id,)).fetchall()
        return [
            StoredMessage(id=row[0], role=row[1], content=row[2], status=row[3], facts=_facts(row[4])) for row in rows
        ]

    def add_message(self, chat_id: str, role: Role, content: str, status: MessageStatus = "complete") -> int:
        """Appends a message and returns its id. StoreError when there is no such chat."""
        now = time.time()
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO messages (chat_id, role, content, status, writer, created) VALUES (?, ?, ?, ?, ?, ?)",
                (chat_id, role, _storable(content), status, self._writer, now),
            )
            db.execute("UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id))
        if cursor.lastrowid is None:
            raise StoreError(f"{self.path}: the message got no id")
        return cursor.lastrowid

    def update_message(
        self, message_id: int, content: str, status: MessageStatus, facts: dict[str, Any] | None = None
    ) -> None:
        """Replaces content and status; `facts` None leaves the facts. A message that was deleted stays deleted."""
        with self._transaction() as db:
            if facts is None:
                db.execute(
                    "UPDATE messages SET content = ?, status = ? WHERE id = ?",
                    (_storable(content), status, message_id),
                )
            else:
                db.execute(
                    "UPDATE messages SET content = ?, status = ?, facts = ? WHERE id = ?",
                    (_storable(content), status, msgspec.json.encode(facts).decode(), message_id),
                )

    def hide_message(self, message_id: int, hidden: bool = True) -> None:
        """Delete a message such that it can come back to its place (`hidden` False), until the next `purge`."""
        with self._transaction() as db:
            db.execute("UPDATE messages SET deleted = ? WHERE id = ?", (time.time() if hidden else None, message_id))

    # -- what the app remembers ----------------------------------------------------------------

    def recall(self, key: str) -> str | None:
        """A remembered setting, such as the theme."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def remember(self, key: str, value: str) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def queue(self, chat_id: str) -> list[str]:
        """Prompts that waited to be sent in that chat, the next one first."""
        try:
            return msgspec.json.decode(self.recall(_QUEUE + chat_id) or "[]", type=list[str])
        except msgspec.DecodeError:
            return []

    def set_queue(self, chat_id: str, prompts: list[str]) -> None:
        if prompts:
            self.remember(_QUEUE + chat_id, msgspec.json.encode([_storable(prompt) for prompt in prompts]).decode())
        else:
            self.forget(_QUEUE + chat_id)

    def forget(self, key: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM state WHERE key = ?", (key,))

    def open_tabs(self) -> tuple[list[str], str | None]:
        """(chat ids of the tabs, left to right; the active one), as last set. Deleted chats are left out."""
        try:
            tabs, active = msgspec.json.decode(self.recall("tabs") or "[[],null]", type=tuple[list[str], str | None])
        except msgspec.DecodeError:
            return [], None
        known = {chat.id for chat in self.chats()}
        return [tab for tab in tabs if tab in known], active if active in known else None

    def set_open_tabs(self, chat_ids: list[str], active: str | None) -> None:
        self.remember("tabs", msgspec.json.encode((chat_ids, active)).decode())

    # -- the file ------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._reporting():
            if self._db is None:
                self._open()
            elif _identity(self.path) != self._file:
                # Writes to an unlinked file succeed and are lost: never go on with one.
                self.close()
                self._open()
                raise StoreReplaced(f"{self.path} was deleted or replaced; a new history file has been started")
            db = self._db
            if db is None:
                raise StoreError(f"{self.path} is closed")
            with db:
                yield db

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Created here, not by SQLite: the mode is right from the first byte on.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
        try:
            db.execute("PRAGMA foreign_keys = ON")
            found = store_schema.prepare(db)
            if found > store_schema.VERSION:
                raise StoreError(
                    f"{self.path} was written by a newer pagechat "
                    f"(version {found}, this one knows {store_schema.VERSION})"
                )
            _stop_abandoned(db)
        except BaseException:
            db.close()
            raise
        self._db, self._file = db, _identity(self.path)


def _stop_abandoned(db: sqlite3.Connection) -> None:
    """Messages whose writer is gone will never be finished: they become stopped, with the text they have."""
    rows = db.execute("SELECT DISTINCT writer FROM messages WHERE status = 'streaming'").fetchall()
    gone = [(writer,) for (writer,) in rows if not writers.alive(writer)]
    if gone:
        with db:
            db.executemany("UPDATE messages SET status = 'stopped' WHERE status = 'streaming' AND writer = ?", gone)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _storable(text: str) -> str:
    """Lone surrogates (from undecodable input) cannot be stored as UTF-8; they become the replacement character."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _facts(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _chat(row: tuple[Any, ...]) -> Chat:
    return Chat(
        id=row[0],
        title=row[1],
        created=row[2],
        updated=row[3],
        settings=_facts(row[4]),
        parent=row[5],
        forked_at=row[6],
        priority=row[7],
    )
