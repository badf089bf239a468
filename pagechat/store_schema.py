"""The tables of the history file, and how a file of an earlier version becomes one of this.

Version 1 had chats and messages. Version 2 adds settings and parents of chats, deletion that can be undone, and the
full text of all messages (SQLite's FTS5). A message enters that index when it is complete: re-indexing a growing
answer twice a second would be wasted work. Version 3 adds priorities of chats. Version 4 adds what several windows on
one history need: a revision of each chat, which grows with every change of it (a message has the revision of its last
change), and, by window, its tabs, its waiting prompts and its drafts.
"""

from __future__ import annotations

import sqlite3

VERSION = 4

_TABLES = """
CREATE TABLE IF NOT EXISTS chats (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat_id TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
    role TEXT NOT NULL, content TEXT NOT NULL, status TEXT NOT NULL,
    facts TEXT NOT NULL DEFAULT '{}', writer TEXT NOT NULL, created REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_of_chat ON messages(chat_id, id);
CREATE INDEX IF NOT EXISTS messages_unfinished ON messages(status) WHERE status = 'streaming';
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_VERSION_2 = """
ALTER TABLE chats ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
ALTER TABLE chats ADD COLUMN parent TEXT;
ALTER TABLE chats ADD COLUMN forked_at INTEGER;
ALTER TABLE chats ADD COLUMN deleted REAL;
ALTER TABLE messages ADD COLUMN deleted REAL;
CREATE VIRTUAL TABLE messages_text USING fts5(content, tokenize = 'unicode61 remove_diacritics 2');
INSERT INTO messages_text (rowid, content) SELECT id, content FROM messages;
CREATE TRIGGER messages_added AFTER INSERT ON messages WHEN new.status <> 'streaming' BEGIN
    INSERT INTO messages_text (rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_changed AFTER UPDATE OF content, status ON messages WHEN new.status <> 'streaming' BEGIN
    DELETE FROM messages_text WHERE rowid = old.id;
    INSERT INTO messages_text (rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_removed AFTER DELETE ON messages BEGIN
    DELETE FROM messages_text WHERE rowid = old.id;
END;
"""

_VERSION_3 = """
ALTER TABLE chats ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
"""

_VERSION_4 = """
ALTER TABLE chats ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
CREATE TABLE windows (name TEXT PRIMARY KEY, tabs TEXT NOT NULL);
CREATE TABLE prompts (
    chat_id TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
    window TEXT NOT NULL, place INTEGER NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (chat_id, window, place)
);
CREATE TABLE drafts (
    chat_id TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
    window TEXT NOT NULL, content TEXT NOT NULL, edit_of INTEGER, edit TEXT NOT NULL, updated REAL NOT NULL,
    PRIMARY KEY (chat_id, window)
);
INSERT INTO prompts (chat_id, window, place, content)
    SELECT chats.id, '', waiting.key, waiting.value
    FROM state JOIN chats ON state.key = 'queue:' || chats.id,
        json_each(CASE WHEN json_valid(state.value) THEN state.value ELSE '[]' END) AS waiting
    WHERE waiting.type = 'text';
DELETE FROM state WHERE key LIKE 'queue:%';
"""


def prepare(db: sqlite3.Connection) -> int:
    """Bring the file to `VERSION` and return the version found; nothing is done to one from a newer pagechat."""
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    if found < VERSION:
        db.execute("PRAGMA journal_mode = WAL")
        # Another process may be doing the same: the version is read again behind the lock.
        db.execute("BEGIN IMMEDIATE")
        try:
            now = db.execute("PRAGMA user_version").fetchone()[0]
            for version, script in enumerate((_TABLES, _VERSION_2, _VERSION_3, _VERSION_4), start=1):
                if now < version:
                    for statement in _statements(script):
                        db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
    return found


def _statements(script: str) -> list[str]:
    """The script's statements; `executescript` would commit the transaction around them."""
    statements, statement = [], ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            statements.append(statement)
            statement = ""
    return statements
