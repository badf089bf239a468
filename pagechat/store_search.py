"""Search over all messages of the history: the query in SQLite's words, and the excerpts.

Words are found by their beginnings in the full-text index. Chinese and Japanese are written without spaces, so
there the index holds whole sentences: such words are looked for letter by letter.
"""

from __future__ import annotations

import sqlite3

FOUND = ("\ue000", "\ue001")
"""Private-use characters around a found word: no text says anything with them."""
EXCERPT = 30
"""Characters on each side of a word found letter by letter; the index counts 14 words instead."""
_SPACELESS = 0x2E80
"""From here on: CJK radicals, kana, ideographs."""
_FROM = (
    "FROM messages_text JOIN messages ON messages.id = messages_text.rowid JOIN chats ON chats.id = messages.chat_id "
    "WHERE messages.deleted IS NULL AND chats.deleted IS NULL AND"
)


def search(db: sqlite3.Connection, words: str, limit: int) -> list[tuple[int, str, str]]:
    """(message id, chat id, excerpt on one line) of messages that hold all the words, the best first."""
    terms = words.split()
    if not terms:
        return []
    if any(ord(letter) >= _SPACELESS for letter in words):
        matches = " AND ".join(["instr(messages_text.content, ?)"] * len(terms))
        query = (
            f"SELECT messages.id, chat_id, messages_text.content {_FROM} {matches} ORDER BY messages.id DESC LIMIT ?"
        )
        rows = [(row[0], row[1], _excerpt(row[2], terms[0])) for row in db.execute(query, (*terms, limit))]
    else:
        snippet = f"snippet(messages_text, 0, '{FOUND[0]}', '{FOUND[1]}', '…', 14)"
        query = f"SELECT messages.id, chat_id, {snippet} {_FROM} messages_text MATCH ? ORDER BY rank LIMIT ?"
        quoted = " ".join('"' + term.replace('"', '""') + '"*' for term in terms)
        rows = db.execute(query, (quoted, limit)).fetchall()
    return [(message_id, chat_id, " ".join(excerpt.split())) for message_id, chat_id, excerpt in rows]


def _excerpt(content: str, term: str) -> str:
    start = content.find(term)
    before, after = content[max(0, start - EXCERPT) : start], content[start + len(term) : start + len(term) + EXCERPT]
    return f"{before}{FOUND[0]}{term}{FOUND[1]}{after}"
