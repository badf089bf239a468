"""What each window on the history has for itself: its tabs, the prompts that wait in it, and its drafts.

A window is one run of the app. While it lives, these are its own: another window on the same chat neither sends nor
overwrites them. Of a window that has ended, the next one to start takes the tabs, and whoever opens a chat next takes
the prompts and drafts left in it. A `Store` that is no window (`name` empty) reads and writes what is nobody's.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence

import msgspec

from pagechat import writers

_TABS = "tabs"
"""Key in `state` of the tabs that no living window has."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed in a chat and not sent."""

    text: str = ""
    edit_of: int | None = None
    """The message being edited; None: none is."""
    edit: str = ""
    """The text that is to take its place."""


class Tabs(msgspec.Struct, frozen=True, array_like=True):
    """Chats left to right, and the active one."""

    chats: list[str] = []
    active: str | None = None


def enter(db: sqlite3.Connection, name: str) -> Tabs:
    """A window begins: it takes the tabs of those that have ended."""
    tabs = free_tabs(db)
    for ended in _ended(db):
        db.execute("DELETE FROM windows WHERE name = ?", (ended,))
    db.execute("DELETE FROM state WHERE key = ?", (_TABS,))
    set_tabs(db, name, tabs)
    return tabs


def leave(db: sqlite3.Connection, name: str) -> None:
    """A window ends: its tabs, and those that others left before, wait for the next one."""
    row = db.execute("SELECT tabs FROM windows WHERE name = ?", (name,)).fetchone()
    if row is not None:
        own, left = _decoded(row[0]), free_tabs(db)
        db.execute("DELETE FROM windows WHERE name = ?", (name,))
        set_tabs(db, "", _joined([left, own]))


def set_tabs(db: sqlite3.Connection, name: str, tabs: Tabs) -> None:
    text = msgspec.json.encode(tabs).decode()
    if name:
        db.execute("INSERT OR REPLACE INTO windows (name, tabs) VALUES (?, ?)", (name, text))
    else:
        db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (_TABS, text))


def free_tabs(db: sqlite3.Connection) -> Tabs:
    """Those of no living window: left by the ones that ended. Chats that are open in a living one are left out."""
    row = db.execute("SELECT value FROM state WHERE key = ?", (_TABS,)).fetchone()
    rows = dict(db.execute("SELECT name, tabs FROM windows").fetchall())
    found = _joined([_decoded(rows[name]) for name in _ended(db)] + ([_decoded(row[0])] if row else []))
    taken = open_in(db, _living(db))
    known = {chat_id for (chat_id,) in db.execute("SELECT id FROM chats WHERE deleted IS NULL")}
    chats = [chat_id for chat_id in found.chats if chat_id in known and chat_id not in taken]
    return Tabs(chats, found.active if found.active in chats else None)


def open_in(db: sqlite3.Connection, names: Iterable[str]) -> set[str]:
    """The chats that these windows have in tabs."""
    wanted = set(names)
    rows = db.execute("SELECT name, tabs FROM windows").fetchall()
    return {chat_id for name, text in rows if name in wanted for chat_id in _decoded(text).chats}


def others(db: sqlite3.Connection, name: str) -> list[str]:
    """The other windows that live."""
    return [other for other in _living(db) if other != name]


def prompts(db: sqlite3.Connection, name: str, chat_id: str) -> list[str]:
    """Those that wait in that chat for this window, or were left there; the next one first."""
    rows = db.execute(
        "SELECT window, content FROM prompts WHERE chat_id = ? ORDER BY window = ?, window, place", (chat_id, name)
    ).fetchall()
    strange = set(others(db, name))
    return [content for window, content in rows if window not in strange]


def set_prompts(db: sqlite3.Connection, name: str, chat_id: str, waiting: Sequence[str]) -> None:
    """In place of what `prompts` tells."""
    _forget(db, "prompts", name, chat_id)
    db.executemany(
        "INSERT INTO prompts VALUES (?, ?, ?, ?)",
        [(chat_id, name, place, content) for place, content in enumerate(waiting)],
    )


def draft(db: sqlite3.Connection, name: str, chat_id: str) -> Draft:
    """This window's in that chat, and what was left there by others that have ended, one under the other."""
    rows = db.execute(
        "SELECT window, content, edit_of, edit FROM drafts WHERE chat_id = ? ORDER BY updated", (chat_id,)
    ).fetchall()
    strange = set(others(db, name))
    found = [Draft(text=row[1], edit_of=row[2], edit=row[3]) for row in rows if row[0] not in strange]
    edits = [one for one in found if one.edit_of is not None]
    last = edits[-1] if edits else Draft()
    texts = [one.text for one in found] + [one.edit for one in edits[:-1]]
    return Draft(text="\n\n".join(dict.fromkeys(text for text in texts if text)), edit_of=last.edit_of, edit=last.edit)


def set_draft(db: sqlite3.Connection, name: str, chat_id: str, kept: Draft) -> None:
    """In place of what `draft` tells."""
    _forget(db, "drafts", name, chat_id)
    if kept != Draft():
        db.execute(
            "INSERT INTO drafts VALUES (?, ?, ?, ?, ?, ?)",
            (chat_id, name, kept.text, kept.edit_of, kept.edit, time.time()),
        )


def _forget(db: sqlite3.Connection, table: str, name: str, chat_id: str) -> None:
    strange = others(db, name)
    marks = ", ".join("?" * len(strange))
    db.execute(f"DELETE FROM {table} WHERE chat_id = ? AND window NOT IN ({marks})", (chat_id, *strange))  # noqa: S608


def _living(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM windows") if writers.alive(name)]


def _ended(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM windows ORDER BY rowid") if not writers.alive(name)]


def _joined(parts: Sequence[Tabs]) -> Tabs:
    chats = list(dict.fromkeys(chat_id for part in parts for chat_id in part.chats))
    return Tabs(chats, next((part.active for part in reversed(parts) if part.active), None))


def _decoded(text: str) -> Tabs:
    try:
        return msgspec.json.decode(text, type=Tabs)
    except msgspec.DecodeError:
        return Tabs()
