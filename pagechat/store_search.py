"""Full-text search of messages: what a person typed in SQLite's words, and the excerpts.

Words are found by their beginnings in the full-text index. Chinese, Japanese, Thai, Lao, Khmer and Burmese are written
without spaces, so there the index holds whole sentences, with the Latin words inside them: messages that hold such
letters are read one by one.
"""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Sequence

FOUND = ("\ue000", "\ue001")
"""Private-use characters around a found word: no text says anything with them."""
EXCERPT = 30
"""Characters on each side of a word in a message that was read; the index counts 14 words instead."""
_SPACELESS = ((0x0E00, 0x10FF), (0x1780, 0x17FF), (0x1950, 0x1AAF), (0x2E80, 0x10FFFF))
"""Letters of languages without spaces; from CJK radicals on also Korean, emoji and everything rare."""
_HOLDS_SPACELESS = "*[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _SPACELESS) + "]*"
_FROM = (
    "FROM messages_text JOIN messages ON messages.id = messages_text.rowid JOIN chats ON chats.id = messages.chat_id "
    "WHERE messages.deleted IS NULL AND chats.deleted IS NULL AND"
)


def search(db: sqlite3.Connection, words: str, limit: int) -> list[tuple[int, str, str]]:
    """(message id, chat id, excerpt on one line) of messages that hold all the words, the best first."""
    terms = words.encode("utf-8", "replace").decode().split()
    terms = [term for term in terms if any(map(str.isalnum, term))] or terms  # signs alone say little
    if not terms:
        return []
    lettered = any(map(str.isalnum, terms[0]))
    found: dict[int, tuple[str, str]] = {}
    if lettered and not any(map(_spaceless, "".join(terms))):
        snippet = f"snippet(messages_text, 0, '{FOUND[0]}', '{FOUND[1]}', '…', 14)"
        query = f"SELECT messages.id, chat_id, {snippet} {_FROM} messages_text MATCH ? ORDER BY rank LIMIT ?"
        quoted = " ".join('"' + term.replace('"', '""') + '"*' for term in terms)
        found = {row[0]: (row[1], row[2]) for row in db.execute(query, (quoted, limit))}
    folded = [folded_text(term) for term in terms]
    query = f"SELECT messages.id, chat_id, messages_text.content {_FROM} messages_text.content GLOB ? ORDER BY 1 DESC"
    for message_id, chat_id, content in db.execute(query, (_HOLDS_SPACELESS if lettered else "*",)):
        if len(found) >= limit:
            break
        if message_id not in found and (excerpt := _found_in(content, folded)) is not None:
            found[message_id] = (chat_id, excerpt)
    return [(message_id, chat_id, " ".join(excerpt.split())) for message_id, (chat_id, excerpt) in found.items()]


def folded_text(text: str) -> str:
    """The text without case, accents, and differences of width."""
    text = text.casefold()
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", "".join(letter for letter in apart if not "\u0300" <= letter <= "\u036f"))


def _found_in(content: str, terms: Sequence[str]) -> str | None:
    """The excerpt around the first of the terms, which are folded, when the text holds them all."""
    text = folded_text(content)
    places = [_place(text, term) for term in terms]
    return None if min(places) < 0 else _excerpt(content, places[0], len(terms[0]))


def _place(text: str, term: str) -> int:
    """Where the term begins in the text, both folded: anywhere, or at the beginning of a word of a spaced language; -1
    for nowhere."""
    at = text.find(term)
    while at > 0 and _joined(text[at - 1], term[0]):
        at = text.find(term, at + 1)
    return at


def _joined(before: str, letter: str) -> bool:
    """Both are letters of one word."""
    return before.isalnum() and letter.isalnum() and not _spaceless(before) and not _spaceless(letter)


def _spaceless(letter: str) -> bool:
    return any(first <= ord(letter) <= last for first, last in _SPACELESS)


def _excerpt(content: str, at: int, length: int) -> str:
    """Around a place in the folded text, which may be longer or shorter than the text itself."""
    folded, start = 0, 0
    while start < len(content) and folded < at:
        folded += len(folded_text(content[start]))
        start += 1
    end = start
    while end < len(content) and folded < at + length:
        folded += len(folded_text(content[end]))
        end += 1
    before, word, after = content[max(0, start - EXCERPT) : start], content[start:end], content[end : end + EXCERPT]
    return f"{before}{FOUND[0]}{word}{FOUND[1]}{after}"
