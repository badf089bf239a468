"""What could not be saved when the app was left (the history was locked, its disk full), kept in a file beside it.

The next start writes it into the history and removes the file. When not even that can be written where the history
lies, the file is in the folder for temporary files, and the person is told its name.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from pagechat.app.conversation import Conversation
from pagechat.store import Draft, MessageStatus, Role, Store

_SUFFIX = ".unsaved.json"


class RescuedMessage(msgspec.Struct):
    role: Role
    content: str
    status: MessageStatus
    facts: dict[str, Any] = {}
    stored_id: int | None = None
    """In the history; None: it is not there."""
    deleted: bool = False


class RescuedChat(msgspec.Struct):
    id: str
    title: str
    settings: dict[str, Any]
    priority: int
    queue: list[str]
    draft: Draft
    messages: list[RescuedMessage]
    """Those that the history does not have as they are."""
    parent: str | None = None
    forked_at: int | None = None


def write(history: Path, chats: Iterable[Conversation]) -> Path:
    """The file that holds what is unsaved of these. Raises OSError."""
    text = msgspec.json.encode([_rescued(chat) for chat in chats])
    name = f"{history.name}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
    error: OSError | None = None
    for folder in (history.parent, Path(tempfile.gettempdir())):
        path = folder / name
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                path.unlink()
                raise
        except OSError as failed:
            error = error or failed
        else:
            return path
    assert error is not None
    raise error


def restore(store: Store) -> list[str]:
    """Write what such files beside the history hold into it; what to tell the person of each. Raises StoreError."""
    told = []
    for path in sorted(store.path.parent.glob(f"{store.path.name}-*{_SUFFIX}")):
        taken = path.with_suffix(".taken")
        with contextlib.suppress(OSError):
            path.rename(taken)  # another window may be doing the same: one of them has it
            try:
                chats = msgspec.json.decode(taken.read_bytes(), type=list[RescuedChat])
            except msgspec.DecodeError as error:
                told.append(f"{taken} cannot be read: {error}")
                continue
            try:
                with store.together():
                    for chat in chats:
                        _restore(store, chat)
            except BaseException:
                taken.rename(path)
                raise
            taken.unlink()
            titles = ", ".join(chat.title or "a new chat" for chat in chats)
            told.append(f"Saved now, as it could not be when pagechat was left: {titles}.")
    return told


def _rescued(chat: Conversation) -> RescuedChat:
    return RescuedChat(
        id=chat.id,
        title=_plain(chat.title),
        settings=_plain(chat.settings.as_dict()),
        priority=chat.priority,
        queue=_plain(list(chat.queue)),
        draft=Draft(text=_plain(chat.unsent.text), edit_of=chat.unsent.edit_of, edit=_plain(chat.unsent.edit)),
        messages=[
            RescuedMessage(
                one.role,
                _plain(one.content),
                "stopped" if one.status == "streaming" else one.status,
                _plain(one.facts),
                one.stored_id,
                one.deleted,
            )
            for one in (*chat.messages, *chat.dropped)
            if one.unsaved
        ],
        parent=chat.parent,
        forked_at=chat.forked_at,
    )


def _restore(store: Store, chat: RescuedChat) -> None:
    store.create_chat(chat.title, chat.id, chat.parent, chat.forked_at)
    store.rename_chat(chat.id, chat.title)
    store.set_settings(chat.id, chat.settings)
    store.set_priority(chat.id, chat.priority)
    store.set_queue(
        chat.id, [*store.queue(chat.id), *(text for text in chat.queue if text not in store.queue(chat.id))]
    )
    if chat.draft != Draft():
        store.set_draft(chat.id, chat.draft)
    known = {one.id for one in store.messages(chat.id)}
    for message in chat.messages:
        if message.stored_id is None or (message.stored_id not in known and not message.deleted):
            message.stored_id = store.add_message(chat.id, message.role, message.content)
        store.update_message(message.stored_id, message.content, message.status, message.facts)
        store.hide_message(message.stored_id, message.deleted)


def _plain(value: Any) -> Any:
    """Without lone surrogates, which no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
