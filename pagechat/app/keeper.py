"""Keeps conversations saved, and up to date with what other windows do: twice a second, from a thread.

The event loop takes note of what changed, one worker thread writes it, in order, a chat in a transaction. When the
store fails (locked, disk full, deleted) the chats go on, the trouble is reported once, and writing is tried again until
it succeeds. What cannot be saved when the app is left goes to a rescue file, which the next start reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pagechat.app import following, rescue
from pagechat.app.chat_settings import ChatSettings
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message
from pagechat.store import Draft, MessageStatus, Store, StoreError, StoreReplaced

SAVE_EVERY_S = 0.5
KEEP_DELETED_S = 30 * 86400.0
"""What was deleted so long ago is purged at a start: no window that could take it back is that old."""
ABANDONED_EVERY = 4
"""Saves between two looks whether the writer of an answer that is followed here still lives."""
LOCKED_S = 0.5
"""A save that fails so late has waited for another process."""
LAST_SAVE_S = 1.5
"""How long leaving waits for the store."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Write:
    """One message as it was when the save began."""

    message: Message
    edits: int
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
    draft: Draft

    @classmethod
    def of(cls, chat: Conversation) -> _Chat:
        return cls(chat.title, chat.settings, tuple(chat.queue), chat.priority, chat.unsent)

    @classmethod
    def saved(cls, chat: Conversation) -> _Chat:
        """What the store has of it."""
        return cls(chat.saved_title or "", chat.saved_settings, chat.saved_queue, chat.saved_priority, chat.saved_draft)


class _Vanished(Exception):
    """The store has nothing of a chat any more."""


class Keeper:
    """Saves the conversations given to `watch`."""

    def __init__(self, store: Store, report: Callable[[str], None]) -> None:
        self.store = store
        self._report = report
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._lock = asyncio.Lock()
        self._watched: dict[str, Conversation] = {}
        self._known: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        """Every conversation of this run that is still in somebody's hands: an undo step's, say."""
        self._leaving: set[str] = set()
        self._tabs: tuple[list[str], str | None] | None = None
        self._saved_tabs: tuple[list[str], str | None] | None = None
        self._data_version = -1
        self._rounds = 0
        self.trouble: str | None = None
        """Why the last save failed; None when it did not."""

    def watch(self, conversation: Conversation) -> None:
        self._watched[conversation.id] = self._known[conversation.id] = conversation
        self._leaving.discard(conversation.id)

    def unwatch(self, conversation: Conversation) -> None:
        """The chat is no longer open; it is let go as soon as all of it is saved."""
        self._leaving.add(conversation.id)

    def held(self, chat_id: str) -> Conversation | None:
        """The conversation of that id, if this run of the app has it still: there is never a second one."""
        return self._known.get(chat_id)

    def note_tabs(self, chat_ids: list[str], active: str | None) -> None:
        """These tabs are open, for the next start; saved with the next save."""
        self._tabs = (chat_ids, active)

    async def begin(self) -> list[str]:
        """Before anything is read: what could not be saved when pagechat was left is saved, and what was deleted long
        ago goes. Returns what to tell of it."""
        with contextlib.suppress(StoreError):  # the next start does it
            told: list[str] = await self.call(rescue.restore, self.store)
            await self.call(self.store.purge, KEEP_DELETED_S)
            return told
        return []

    async def run(self) -> None:
        """Save what changed, and follow what others changed, twice a second, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.flush()
            with contextlib.suppress(StoreError):  # saving tells what is wrong with the store
                await self.follow()

    async def flush(self) -> None:
        """Save now. Returns when the store has everything said so far, or has failed (`trouble`)."""
        async with self._lock:
            trouble: str | None = None
            for conversation in list(self._watched.values()):
                began = time.monotonic()
                if not await self._save(conversation):
                    trouble = self._latest
                    if time.monotonic() - began > LOCKED_S:
                        break  # the others would wait as long, and in vain
            if trouble is None:
                await self._save_tabs()
            if trouble and trouble != self.trouble:
                self._report(trouble)
            self.trouble = trouble

    async def follow(self, only: Conversation | None = None) -> None:
        """Take in what other windows changed of the open chats, or of `only` that one. Raises StoreError."""
        async with self._lock:
            version = await self.call(self.store.data_version)
            watched = [only] if only is not None else [one for one in self._watched.values() if one.kept]
            self._rounds += 1
            if self._rounds % ABANDONED_EVERY == 0 and any(one.followed for one in watched):
                await self.call(self.store.stop_abandoned)
            elif only is None and version == self._data_version:
                return
            chats = {conversation.id: conversation for conversation in watched}
            elsewhere = await self.call(self.store.open_elsewhere)
            for news in await self.call(self.store.news, {chat.id: chat.seen for chat in watched}):
                told = following.take(chats[news.chat.id], news)
                if told and news.chat.id not in self._leaving:
                    self._report(told)
            for conversation in watched:
                if conversation.elsewhere != (conversation.id in elsewhere):
                    conversation.elsewhere = not conversation.elsewhere
                    conversation.changed()
            if only is None:
                self._data_version = version

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """`function(*arguments)` on the store's thread, after the writes already queued. Raises its StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*arguments))

    async def close(self) -> None:
        """A last save, then the end of the thread and of the store. It takes `LAST_SAVE_S` at most, and then what is
        not saved goes to a rescue file."""
        self.store.hurry()
        try:
            async with asyncio.timeout(LAST_SAVE_S):
                await self.flush()
                if self.trouble:  # a lock held by another process may be gone by now
                    await self.flush()
                with contextlib.suppress(StoreError):  # the row of a window that has ended is found by the next one
                    await self.call(self.store.leave)
        except TimeoutError:
            self.trouble = self.trouble or f"{self.store.path} did not answer within {LAST_SAVE_S:g} s"
        self._rescue()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.call(self.store.close)
        self._thread.shutdown(wait=False)

    def _rescue(self) -> None:
        unsaved = [one for one in self._watched.values() if _needs_saving(one)]
        if not unsaved:
            self.trouble = None
            return
        try:
            file = rescue.write(self.store.path, unsaved)
        except OSError as error:
            self.trouble = f"{self.trouble or ''} Nor could they be kept in a file: {error}"
        else:
            self.trouble = f"{self.trouble or ''} They are kept in {file}; the next start of pagechat reads it."

    _latest = ""

    async def _save_tabs(self) -> None:
        tabs = self._tabs
        if tabs is not None and tabs != self._saved_tabs:
            with contextlib.suppress(StoreError):  # which tabs were open is no loss; told with the rest
                if not self.store.window:  # it could not be written at the start
                    await self.call(self.store.enter)
                await self.call(self.store.set_open_tabs, *tabs)
                self._saved_tabs = tabs

    async def _save(self, conversation: Conversation) -> bool:
        if _needs_saving(conversation):
            chat = _Chat.of(conversation)
            writes = [
                _Write(m, m.edits, m.content, m.status, dict(m.facts), m.deleted)
                for m in (*conversation.messages, *conversation.dropped)
                if m.unsaved
            ]
            try:
                await self.call(self._write, conversation, chat, writes)
            except StoreReplaced as error:
                for watched in self._watched.values():  # the store is empty: nothing of what is open is in it
                    watched.forget_saved()
                self._saved_tabs = None
                self._latest = f"{error}. Open chats are saved in it."
                return False
            except _Vanished:
                conversation.forget_saved()
                return await self._save(conversation)
            except StoreError as error:
                self._latest = f"Not saved: {error}. The chat goes on; saving is tried again."
                return False
            except Exception as error:  # a bug in one chat must not keep the others from being saved
                self._latest = f"Not saved: {conversation.label}: {type(error).__name__}: {error}"
                return False
        if conversation.id in self._leaving and not conversation.streaming:
            self._leaving.discard(conversation.id)
            self._watched.pop(conversation.id, None)
        return True

    def _write(self, conversation: Conversation, chat: _Chat, writes: list[_Write]) -> None:
        # On the store's thread. `stored_id`, `saved_...` and `seen` are written here and in `following` only, under
        # `_lock`, and here when all of it is in the store.
        store, new = self.store, {}
        with store.together():
            before = store.revision(conversation.id)
            if conversation.kept and before < 0:
                raise _Vanished
            if not conversation.kept or (conversation.gone and _says_something(chat, writes)):
                store.create_chat(chat.title, conversation.id, conversation.parent, conversation.forked_at)
                conversation.created_here = before < 0
            self._write_chat(conversation, chat)
            for write in writes:
                if write.message.stored_id is None:
                    new[write.message] = self._add(conversation, write)
                else:
                    self._update(write, write.message.stored_id)
            draft = chat.draft
            if conversation.editing is not None and conversation.editing in new:  # it has its id only now
                draft = Draft(text=draft.text, edit_of=new[conversation.editing], edit=draft.edit)
            if draft != conversation.saved_draft:
                store.set_draft(conversation.id, draft)
            taken_back = chat.queue != conversation.saved_queue or draft != conversation.saved_draft
            empty = not chat.queue and conversation.blank and not conversation.dropped and draft == Draft()
            nothing = taken_back and empty and (conversation.created_here or not chat.title)
            if nothing:  # all it ever had
                store.delete_chat(conversation.id)
            after = store.revision(conversation.id)
        if nothing:
            conversation.forget_saved()
            return
        conversation.saved_title, conversation.saved_settings = chat.title, chat.settings
        conversation.saved_priority, conversation.saved_queue = chat.priority, chat.queue
        conversation.saved_draft, conversation.gone = draft, conversation.gone and not _says_something(chat, writes)
        for write in writes:
            write.message.stored_id = write.message.stored_id or new.get(write.message)
            write.message.saved_edits, write.message.saved_deleted = write.edits, write.deleted
        if before in (conversation.seen, -1):  # no other window wrote in between
            conversation.seen = after

    def _write_chat(self, conversation: Conversation, chat: _Chat) -> None:
        store = self.store
        if conversation.kept and chat.title != conversation.saved_title:
            store.rename_chat(conversation.id, chat.title)
        if chat.settings != conversation.saved_settings:
            store.set_settings(conversation.id, chat.settings.as_dict())
        if chat.priority != conversation.saved_priority:
            store.set_priority(conversation.id, chat.priority)
        if chat.queue != conversation.saved_queue:
            store.set_queue(conversation.id, list(chat.queue))

    def _add(self, conversation: Conversation, write: _Write) -> int:
        stored_id = self.store.add_message(conversation.id, write.message.role, write.content, write.status)
        if write.facts:
            self.store.update_message(stored_id, write.content, write.status, write.facts)
        if write.deleted:
            self.store.hide_message(stored_id)
        return stored_id

    def _update(self, write: _Write, stored_id: int) -> None:
        if write.edits != write.message.saved_edits:
            self.store.update_message(stored_id, write.content, write.status, write.facts)
        if write.deleted != write.message.saved_deleted:
            self.store.hide_message(stored_id, write.deleted)


def _needs_saving(conversation: Conversation) -> bool:
    if any(message.unsaved for message in (*conversation.messages, *conversation.dropped)):
        return True
    return _Chat.of(conversation) != _Chat.saved(conversation) and (conversation.kept or not conversation.blank)


def _says_something(chat: _Chat, writes: list[_Write]) -> bool:
    """More than that something is deleted: it brings a deleted chat back."""
    return bool(chat.queue) or chat.draft != Draft() or any(not write.deleted for write in writes)
