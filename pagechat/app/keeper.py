"""Keeps conversations saved: everything said is in the store within half a second, from a thread.

The event loop takes note of what changed, one worker thread writes it, in order. When the store fails (locked,
disk full, deleted) the chats go on, the trouble is reported once, and writing is tried again until it succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pagechat.app.chat_settings import ChatSettings
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message
from pagechat.store import MessageStatus, Store, StoreError, StoreReplaced

SAVE_EVERY_S = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Write:
    """One message as it was when the save began."""

    message: Message
    version: int
    content: str
    status: MessageStatus
    facts: dict[str, Any]
    deleted: bool


@dataclass(frozen=True, slots=True)
class _Chat:
    """What else of a chat is saved, as it was when the save began."""

    title: str
    settings: ChatSettings
    queue: tuple[str, ...]
    priority: int

    @classmethod
    def of(cls, conversation: Conversation) -> _Chat:
        return cls(conversation.title, conversation.settings, tuple(conversation.queue), conversation.priority)

    @classmethod
    def saved(cls, conversation: Conversation) -> _Chat:
        """What the store has of it."""
        title = conversation.saved_title or ""
        return cls(title, conversation.saved_settings, conversation.saved_queue, conversation.saved_priority)


class Keeper:
    """Saves the conversations given to `watch`."""

    def __init__(self, store: Store, report: Callable[[str], None]) -> None:
        self.store = store
        self._report = report
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._lock = asyncio.Lock()
        self._watched: dict[str, Conversation] = {}
        self._leaving: set[str] = set()
        self._saved: dict[Message, int] = {}
        """Version of each message that the store has."""
        self.trouble: str | None = None
        """Why the last save failed; None when it did not."""

    def watch(self, conversation: Conversation) -> None:
        self._watched[conversation.id] = conversation
        self._leaving.discard(conversation.id)
        for message in conversation.messages:
            if message.stored_id is not None:
                self._saved.setdefault(message, message.version)

    def unwatch(self, conversation: Conversation) -> None:
        """The chat is no longer open; it is let go as soon as all of it is saved."""
        self._leaving.add(conversation.id)

    def held(self, chat_id: str) -> Conversation | None:
        """The conversation of that id while it is open, or closed and not yet saved."""
        return self._watched.get(chat_id)

    async def run(self) -> None:
        """Save what changed, twice a second, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """Save now. Returns when the store has everything said so far, or has failed (`trouble`)."""
        async with self._lock:
            trouble: str | None = None
            for conversation in list(self._watched.values()):
                if not await self._save(conversation):
                    trouble = self._latest
            if trouble and trouble != self.trouble:
                self._report(trouble)
            self.trouble = trouble

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` on the store's thread, after the writes already queued. Raises its StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*arguments))

    async def close(self) -> None:
        """A last save, then the end of the thread and of the store, and of what was deleted."""
        await self.flush()
        if self.trouble:  # a lock held by another process may be gone by now
            await self.flush()
        else:
            with contextlib.suppress(StoreError):  # nothing of value is lost: the next time does it
                await self.call(self.store.purge)
        await self.call(self.store.close)
        self._thread.shutdown(wait=False)

    _latest = ""

    async def _save(self, conversation: Conversation) -> bool:
        chat = _Chat.of(conversation)
        writes = [
            _Write(m, m.version, m.content, m.status, dict(m.facts), m.deleted)
            for m in (*conversation.messages, *conversation.dropped)
            if self._saved.get(m) != m.version
        ]
        if writes or (chat != _Chat.saved(conversation) and (conversation.messages or chat.queue or conversation.kept)):
            try:
                await self.call(self._write, conversation, chat, writes)
            except StoreReplaced as error:
                self._start_over()
                self._latest = f"{error}. Open chats are saved in it."
                return False
            except StoreError as error:
                self._latest = f"Not saved: {error}. The chat goes on; saving is tried again."
                return False
        if conversation.id in self._leaving and not conversation.streaming:
            self._leaving.discard(conversation.id)
            if self._watched.pop(conversation.id, None):
                for message in (*conversation.messages, *conversation.dropped):
                    self._saved.pop(message, None)
        return True

    def _write(self, conversation: Conversation, chat: _Chat, writes: list[_Write]) -> None:
        # On the store's thread. `stored_id`, `saved_...` and `_saved` are written here only, under `_lock`,
        # write by write, so that a failure half-way repeats nothing.
        if chat.title != conversation.saved_title:
            if conversation.saved_title is None:
                self._create(conversation, chat)
            else:
                self.store.rename_chat(conversation.id, chat.title)
            conversation.saved_title = chat.title
        if chat.settings != conversation.saved_settings:
            self.store.set_settings(conversation.id, chat.settings.as_dict())
            conversation.saved_settings = chat.settings
        if chat.priority != conversation.saved_priority:
            self.store.set_priority(conversation.id, chat.priority)
            conversation.saved_priority = chat.priority
        if chat.queue != conversation.saved_queue:
            self.store.set_queue(conversation.id, list(chat.queue))
            conversation.saved_queue = chat.queue
            if not chat.queue and conversation.blank and not conversation.dropped:  # all it ever had was taken back
                self.store.delete_chat(conversation.id)
                conversation.forget_saved()
        for write in writes:
            self._write_message(conversation, chat, write)
            self._saved[write.message] = write.version

    def _write_message(self, conversation: Conversation, chat: _Chat, write: _Write) -> None:
        store, message = self.store, write.message
        if message.stored_id is None:
            if write.deleted:
                return  # it came and went between two saves
            self._create(conversation, chat)  # another process may have deleted it; nothing if it is there
            message.stored_id = store.add_message(conversation.id, message.role, write.content, write.status)
            if write.facts:
                store.update_message(message.stored_id, write.content, write.status, write.facts)
        else:
            store.update_message(message.stored_id, write.content, write.status, write.facts)
            store.hide_message(message.stored_id, write.deleted)

    def _create(self, conversation: Conversation, chat: _Chat) -> None:
        self.store.create_chat(chat.title, conversation.id, conversation.parent, conversation.forked_at)

    def _start_over(self) -> None:
        """The store is empty: nothing of what is open is in it."""
        self._saved.clear()
        for conversation in self._watched.values():
            conversation.forget_saved()
            for message in (*conversation.messages, *conversation.dropped):
                message.stored_id = None
