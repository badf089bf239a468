"""Chat history in one SQLite file, shared by every window of the app and `pagechat-daemon ask --session`.

It knows chats, messages, what is remembered, and what each window has for itself; it knows no screen and no engine.
Every write is its own transaction in WAL mode (`together` makes one of several): what a call stored survives the death
of the process. What is deleted can come back until it is purged, and nobody purges what another window could still
want back: only what was deleted long ago goes.

Messages are only ever appended: two windows in one chat never write to one message. Each chat has a revision that grows
with every change, so that a window sees what others have done (`news`). A message being written is owned by the process
that writes it (`writer`); when that process is gone, the message becomes a stopped one and keeps its text.

A `Store` may be used from several threads. Failures are `StoreError`, with the path in it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import platformdirs

from pagechat import store_search, store_windows, writers
from pagechat.store_file import StoreError, StoreFile, StoreReplaced
from pagechat.store_windows import Draft, Tabs

__all__ = ["Chat", "Draft", "Hit", "News", "Store", "StoreError", "StoreReplaced", "StoredMessage", "data_dir"]

MessageStatus = Literal["streaming", "stopped", "complete", "error"]
Role = Literal["system", "user", "assistant"]

BUSY_TIMEOUT_S = 3.0
"""How long a write waits for another process's write before it is a `StoreError`."""

_CHAT = "chats.id, title, chats.created, updated, settings, parent, forked_at, priority, chats.revision"
_MESSAGE = "id, role, content, status, facts, deleted IS NOT NULL, writer"


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
    revision: int = 0
    """Grows with every change of the chat and of its messages."""


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
    deleted: bool = False
    here: bool = True
    """Written through this `Store`."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed of a chat since a revision."""

    chat: Chat
    deleted: bool
    """It was deleted, and may come back."""
    messages: list[StoredMessage]
    """Those added, changed, deleted or brought back."""


def data_dir() -> Path:
    """What is kept for this user: $PAGECHAT_DATA_DIR, else the user's data directory. It may not exist yet."""
    return Path(os.environ.get("PAGECHAT_DATA_DIR") or platformdirs.user_data_dir("pagechat", appauthor=False))


def default_path() -> Path:
    """Where the history lives: `chats.db` in the data directory."""
    return data_dir() / "chats.db"


class Store(StoreFile):
    """The history file. Creates it (mode 0600, its folder 0700) when there is none."""

    def __init__(self, path: Path | None = None) -> None:
        self._writer = writers.part_of_own()
        self.window = ""
        """Name of this window; empty: this is none (see `enter`)."""
        super().__init__(path or default_path(), lambda: BUSY_TIMEOUT_S)

    # -- chats ---------------------------------------------------------------------------------

    def create_chat(
        self,
        title: str,
        chat_id: str | None = None,
        parent: str | None = None,
        forked_at: int | None = None,
        afresh: bool = False,
    ) -> Chat:
        """A new chat; `chat_id` None makes a random id. An id that exists keeps its title and messages.

        One that was deleted comes back as it was; `afresh`: without what was said in it, which stays deleted.
        """
        now, title = time.time(), _storable(title)
        chat_id = chat_id or uuid.uuid4().hex
        with self._writing() as db:
            if afresh and db.execute("SELECT 1 FROM chats WHERE id = ? AND deleted IS NOT NULL", (chat_id,)).fetchone():
                db.execute("UPDATE messages SET deleted = ? WHERE chat_id = ? AND deleted IS NULL", (now, chat_id))
                db.execute(
                    "UPDATE chats SET title = ?, created = ?, settings = '{}' WHERE id = ?", (title, now, chat_id)
                )
            db.execute("UPDATE chats SET deleted = NULL WHERE id = ?", (chat_id,))
            db.execute(
                "INSERT OR IGNORE INTO chats (id, title, created, updated, parent, forked_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (chat_id, title, now, now, parent, forked_at),
            )
            _revise(db, chat_id)
        chat = self.find_chat(chat_id)
        if chat is None:
            raise StoreError(f"{self.path}: chat {chat_id} vanished as it was made")
        return chat

    def find_chat(self, chat_id: str) -> Chat | None:
        with self._reading() as db:
            row = db.execute(f"SELECT {_CHAT} FROM chats WHERE id = ? AND deleted IS NULL", (chat_id,)).fetchone()  # noqa: S608
        return _chat(row) if row else None

    def chats(self) -> list[Chat]:
        """All chats, the last used first."""
        query = f"SELECT {_CHAT} FROM chats WHERE deleted IS NULL ORDER BY updated DESC, created DESC"  # noqa: S608
        with self._reading() as db:
            rows = db.execute(query).fetchall()
        return [_chat(row) for row in rows]

    def rename_chat(self, chat_id: str, title: str) -> None:
        self._change_chat(chat_id, "title", _storable(title))

    def set_settings(self, chat_id: str, settings: dict[str, Any]) -> None:
        self._change_chat(chat_id, "settings", msgspec.json.encode(_storable_facts(settings)).decode())

    def set_priority(self, chat_id: str, priority: int) -> None:
        self._change_chat(chat_id, "priority", priority)

    def _change_chat(self, chat_id: str, column: str, value: object) -> None:
        with self._writing() as db:
            db.execute(f"UPDATE chats SET {column} = ? WHERE id = ?", (value, chat_id))  # noqa: S608
            _revise(db, chat_id)

    def delete_chat(self, chat_id: str) -> None:
        """The chat and all its messages, for good."""
        with self._writing() as db:
            db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))

    def hide_chat(self, chat_id: str, hidden: bool = True) -> bool:
        """Delete a chat such that it can come back (`hidden` False) until it is purged. False: there is none."""
        with self._writing() as db:
            when = time.time() if hidden else None
            found = db.execute("UPDATE chats SET deleted = ? WHERE id = ?", (when, chat_id)).rowcount
            _revise(db, chat_id)
        return found > 0

    def purge(self, older_than_s: float = 0.0) -> None:
        """Delete for good what was deleted at least so long ago: chats and messages."""
        before = time.time() - older_than_s
        with self._writing() as db:
            db.execute("DELETE FROM chats WHERE deleted <= ?", (before,))
            db.execute("DELETE FROM messages WHERE deleted <= ?", (before,))

    def search(self, words: str, limit: int = 100) -> list[Hit]:
        """Messages that hold all the words, each at least as a beginning; the best first. Case and accents do not
        matter."""
        with self._reading() as db:
            found = store_search.search(db, words, limit)
        chats = {chat.id: chat for chat in self.chats()} if found else {}
        return [Hit(chat=chats[chat], message_id=id_, excerpt=text) for id_, chat, text in found if chat in chats]

    # -- messages ------------------------------------------------------------------------------

    def messages(self, chat_id: str) -> list[StoredMessage]:
        """In the order they were written."""
        query = f"SELECT {_MESSAGE} FROM messages WHERE chat_id = ? AND deleted IS NULL ORDER BY id"  # noqa: S608
        with self._reading() as db:
            rows = db.execute(query, (chat_id,)).fetchall()
        return [self._message(row) for row in rows]

    def add_message(self, chat_id: str, role: Role, content: str, status: MessageStatus = "complete") -> int:
        """Appends a message and returns its id. StoreError when there is no such chat."""
        now = time.time()
        with self._writing() as db:
            revision = _revise(db, chat_id)
            cursor = db.execute(
                "INSERT INTO messages (chat_id, role, content, status, writer, created, revision) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (chat_id, role, _storable(content), status, self._writer, now, revision),
            )
            db.execute("UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id))
        if cursor.lastrowid is None:
            raise StoreError(f"{self.path}: the message got no id")
        return cursor.lastrowid

    def update_message(
        self, message_id: int, content: str, status: MessageStatus, facts: dict[str, Any] | None = None
    ) -> None:
        """Replaces content and status; `facts` None leaves the facts. A message that was deleted stays deleted."""
        columns: dict[str, object] = {"content": _storable(content), "status": status}
        if facts is not None:
            columns["facts"] = msgspec.json.encode(_storable_facts(facts)).decode()
        self._change_message(message_id, columns)

    def hide_message(self, message_id: int, hidden: bool = True) -> bool:
        """Delete a message such that it can come back to its place (`hidden` False) until it is purged. False: there
        is none."""
        return self._change_message(message_id, {"deleted": time.time() if hidden else None})

    def _change_message(self, message_id: int, columns: Mapping[str, object]) -> bool:
        with self._writing() as db:
            row = db.execute("SELECT chat_id FROM messages WHERE id = ?", (message_id,)).fetchone()
            if row is None:
                return False
            changes = ", ".join(f"{column} = ?" for column in columns)
            db.execute(
                f"UPDATE messages SET {changes}, revision = ? WHERE id = ?",  # noqa: S608
                (*columns.values(), _revise(db, row[0]), message_id),
            )
        return True

    def _message(self, row: tuple[Any, ...]) -> StoredMessage:
        return StoredMessage(
            id=row[0],
            role=row[1],
            content=row[2],
            status=row[3],
            facts=_facts(row[4]),
            deleted=bool(row[5]),
            here=row[6] == self._writer,
        )

    # -- what others have done -----------------------------------------------------------------

    def revision(self, chat_id: str) -> int:
        """Of a chat, deleted or not; -1 when there is none."""
        with self._reading() as db:
            row = db.execute("SELECT revision FROM chats WHERE id = ?", (chat_id,)).fetchone()
        return row[0] if row else -1

    def news(self, seen: Mapping[str, int]) -> list[News]:
        """What has changed of these chats since the revision that was seen of each."""
        found = []
        with self._reading() as db:
            for chat_id, revision in seen.items():
                query = f"SELECT {_CHAT}, deleted FROM chats WHERE id = ? AND revision > ?"  # noqa: S608
                row = db.execute(query, (chat_id, revision)).fetchone()
                if row is not None:
                    query = f"SELECT {_MESSAGE} FROM messages WHERE chat_id = ? AND revision > ? ORDER BY id"  # noqa: S608
                    messages = [self._message(one) for one in db.execute(query, (chat_id, revision))]
                    found.append(News(chat=_chat(row), deleted=row[-1] is not None, messages=messages))
        return found

    def stop_abandoned(self) -> None:
        """Messages whose writer is gone will never be finished: they become stopped, with the text they have."""
        with self._reading() as db:
            _stop_abandoned(db)

    # -- what the app remembers ----------------------------------------------------------------

    def recall(self, key: str) -> str | None:
        """A remembered setting, such as the theme."""
        with self._reading() as db:
            row = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def remember(self, key: str, value: str) -> None:
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    def forget(self, key: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM state WHERE key = ?", (key,))

    # -- what this window has for itself -------------------------------------------------------

    def enter(self) -> tuple[list[str], str | None]:
        """This is a window from now on. It takes the tabs of those that have ended, as `open_tabs` tells them."""
        with self._writing() as db:
            tabs = store_windows.enter(db, self._writer)
        self.window = self._writer
        return tabs.chats, tabs.active

    def leave(self) -> None:
        """This window ends; its tabs are there for the next one."""
        if self.window:
            with self._writing() as db:
                store_windows.leave(db, self.window)

    def open_tabs(self) -> tuple[list[str], str | None]:
        """(chat ids, left to right; the active one) of the tabs that windows which have ended left. Deleted chats, and
        those that are open in a living window, are left out."""
        with self._reading() as db:
            tabs = store_windows.free_tabs(db)
        return tabs.chats, tabs.active

    def set_open_tabs(self, chat_ids: list[str], active: str | None) -> None:
        with self._writing() as db:
            store_windows.set_tabs(db, self.window, Tabs(chat_ids, active))

    def open_elsewhere(self) -> set[str]:
        """Chats that are open in other living windows."""
        with self._reading() as db:
            return store_windows.open_in(db, store_windows.others(db, self.window))

    def take(self, chat_id: str) -> tuple[list[str], Draft]:
        """What waits in a chat for this window, and what windows that have ended left there: it is this one's now."""
        if not self.window:  # nobody's stays nobody's
            return self.queue(chat_id), self.draft(chat_id)
        try:
            with self._writing() as db:
                found = (
                    store_windows.prompts(db, self.window, chat_id),
                    store_windows.draft(db, self.window, chat_id),
                )
                store_windows.set_prompts(db, self.window, chat_id, found[0])
                store_windows.set_draft(db, self.window, chat_id, found[1])
                return found
        except StoreError:  # a file that can only be read
            return self.queue(chat_id), self.draft(chat_id)

    def queue(self, chat_id: str) -> list[str]:
        """Prompts that waited to be sent in that chat, the next one first."""
        with self._reading() as db:
            return store_windows.prompts(db, self.window, chat_id)

    def set_queue(self, chat_id: str, prompts: list[str]) -> None:
        with self._writing() as db:
            store_windows.set_prompts(db, self.window, chat_id, [_storable(prompt) for prompt in prompts])

    def draft(self, chat_id: str) -> Draft:
        """What was typed in that chat and not sent."""
        with self._reading() as db:
            return store_windows.draft(db, self.window, chat_id)

    def set_draft(self, chat_id: str, draft: Draft) -> None:
        kept = Draft(text=_storable(draft.text), edit_of=draft.edit_of, edit=_storable(draft.edit))
        with self._writing() as db:
            store_windows.set_draft(db, self.window, chat_id, kept)

    # -- the file ------------------------------------------------------------------------------

    def _opened(self, db: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.OperationalError):  # it can only be read, or is locked: the next one does it
            _stop_abandoned(db)


def _revise(db: sqlite3.Connection, chat_id: str) -> int:
    """The chat has changed: its next revision."""
    db.execute("UPDATE chats SET revision = revision + 1 WHERE id = ?", (chat_id,))
    row = db.execute("SELECT revision FROM chats WHERE id = ?", (chat_id,)).fetchone()
    return row[0] if row else 0


def _stop_abandoned(db: sqlite3.Connection) -> None:
    rows = db.execute("SELECT DISTINCT chat_id, writer FROM messages WHERE status = 'streaming'").fetchall()
    for chat_id, writer in rows:
        if not writers.alive(writer):
            _revise(db, chat_id)
            db.execute(
                "UPDATE messages SET status = 'stopped', revision = (SELECT revision FROM chats WHERE id = chat_id) "
                "WHERE status = 'streaming' AND chat_id = ? AND writer = ?",
                (chat_id, writer),
            )


def _storable(text: str) -> str:
    """Lone surrogates (from undecodable input) cannot be stored as UTF-8; they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _storable_facts(value: Any) -> Any:
    """The same in every text of the facts: an error may quote what it could not read."""
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, dict):
        return {_storable_facts(key): _storable_facts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_storable_facts(one) for one in value]
    return value


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
        revision=row[8],
    )
