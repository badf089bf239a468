"""A chat as the app holds it: its messages, how they change, and the answer being written.

Everything here runs on the event loop and knows no widget: a chat goes on streaming whether or not
anything draws it. Views look at `Conversation.version` to see whether there is something new.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pagechat.app import choosing
from pagechat.app.chat_settings import ChatSettings, settings_from
from pagechat.app.client_api import Client
from pagechat.app.fetching import Asking, fetch
from pagechat.app.message import Message, restored
from pagechat.app.prose import split_reasoning
from pagechat.app.rate import Rate
from pagechat.client import DaemonGone
from pagechat.protocol import ChatMessage
from pagechat.store import Chat, Draft, StoredMessage
from pagechat.text_safety import sanitize

TITLE_LENGTH = 40
STOP_TIMEOUT_S = 3.0
"""How long a stopped answer may wait for the daemon's last word before it ends without."""

NO_DRAFT = Draft()

TabState = Literal["idle", "thinking", "streaming", "unread", "error"]
Save = Callable[[], Awaitable[None]]


class ChatBusy(Exception):
    """Another window writes in the chat; the message says so, for people."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Conversation:
    """An open chat. Its id is also the session under which the engine knows its blocks."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    title: str = ""
    messages: list[Message] = field(default_factory=list)
    settings: ChatSettings = field(default_factory=ChatSettings)
    parent: str | None = None
    """The chat it was forked from, and how many messages it had in common with it then."""
    forked_at: int | None = None
    dropped: set[Message] = field(default_factory=set)
    """Messages that were taken out; the store is told that they are deleted."""
    queue: list[str] = field(default_factory=list)
    """Prompts that wait for their turn, the next one first."""
    held: bool = False
    """The queue waits for a person: the last answer failed, or pagechat was left while it waited."""
    pinned: bool = False
    """The engine never takes its blocks for others."""
    priority: int = 0
    """Of its requests: the lower is served first."""
    draft: str = ""
    """What was typed here and not sent."""
    editing: Message | None = None
    """The message whose place the next text takes; `edit_text` is it so far, and `draft` comes back after it."""
    edit_text: str = ""
    preparing: bool = False
    """The engine is being asked to share blocks with it: nothing is sent meanwhile."""
    gone: bool = False
    """It was deleted in another window. What is said here brings it back."""
    elsewhere: bool = False
    """It is open in another window too."""
    unread: bool = False
    version: int = 0
    """Grows with every change of title, messages, queue or state."""
    task: asyncio.Task[None] | None = None
    """Fetches the answer being written."""
    asked: Message | None = None
    """What `task` writes, or wrote last."""
    request_id: str | None = None
    asked_at: float = 0.0
    """Unix time at which the last answer was asked for."""
    stopping: bool = False
    rate: Rate = field(default_factory=Rate)
    saved_title: str | None = None
    """Title in the store; None: the chat is not there yet."""
    created_here: bool = False
    """In the store, by this run of the app."""
    saved_settings: ChatSettings = field(default_factory=ChatSettings)
    saved_queue: tuple[str, ...] = ()
    saved_priority: int = 0
    saved_draft: Draft = NO_DRAFT
    seen: int = -1
    """Revision of the chat in the store up to which everything in it is here."""

    @classmethod
    def restored(
        cls, chat: Chat, messages: Iterable[StoredMessage], queue: Iterable[str] = (), draft: Draft = NO_DRAFT
    ) -> Conversation:
        """As the store has it. Prompts that waited then wait for a person: nothing is sent unseen."""
        queue = list(queue)
        held = [restored(one) for one in messages]
        editing = next((m for m in held if m.stored_id == draft.edit_of and m.role == "user"), None)
        texts = (draft.text, draft.edit if draft.edit_of is not None and editing is None else "")
        settings = settings_from(chat.settings)
        return cls(
            id=chat.id,
            title=chat.title,
            messages=held,
            settings=settings,
            parent=chat.parent,
            forked_at=chat.forked_at,
            saved_title=chat.title,
            saved_settings=settings,
            queue=queue,
            held=bool(queue),
            saved_queue=tuple(queue),
            priority=chat.priority,
            saved_priority=chat.priority,
            draft="\n\n".join(text for text in texts if text),
            editing=editing,
            edit_text=draft.edit if editing is not None else "",
            saved_draft=draft,
            seen=chat.revision,
        )

    def forget_saved(self) -> None:
        """The store has nothing of the chat itself."""
        self.saved_title, self.saved_settings, self.saved_queue, self.saved_priority = None, ChatSettings(), (), 0
        self.saved_draft, self.seen = NO_DRAFT, -1
        for message in (*self.messages, *self.dropped):
            message.stored_id, message.saved_edits, message.saved_deleted = None, -1, False

    @property
    def answer(self) -> Message | None:
        """The answer being written, if one is."""
        return self.asked if self.asked is not None and self.asked.growing else None

    @property
    def choosing(self) -> Message | None:
        """The answer that stands for several, of which a person is to pick one."""
        return self.messages[-1] if self.messages and self.messages[-1].choices else None

    @property
    def streaming(self) -> bool:
        return self.answer is not None

    @property
    def followed(self) -> Message | None:
        """An answer that another window writes here, if one does."""
        return next((one for one in self.messages[-3:] if not one.here and one.status == "streaming"), None)

    @property
    def blank(self) -> bool:
        """Nothing has been said, asked for or typed here."""
        return not (self.messages or self.queue or self.draft.strip() or self.editing)

    @property
    def unsent(self) -> Draft:
        """What was typed and not sent, as the store keeps it."""
        if self.editing is None:
            return Draft(text=self.draft)
        return Draft(text=self.draft, edit_of=self.editing.stored_id, edit=self.edit_text)

    @property
    def kept(self) -> bool:
        """It is in the store."""
        return self.saved_title is not None

    @property
    def state(self) -> TabState:
        if (answer := self.answer or self.followed) is not None:
            return "streaming" if any(one.content for one in answer.candidates) else "thinking"
        if self.messages and self.messages[-1].status == "error":
            return "error"
        return "unread" if self.unread else "idle"

    @property
    def label(self) -> str:
        """The title, safe to display, on one line."""
        return " ".join(sanitize(self.title).split()) or "new chat"

    def changed(self) -> None:
        self.version += 1

    def rename(self, title: str) -> None:
        self.title = " ".join(title.split())[:200]
        self.changed()

    def configure(self, settings: ChatSettings) -> None:
        """From the next answer on."""
        self.settings = settings
        self.changed()

    def context(self, end: int | None = None) -> list[ChatMessage]:
        """What the model is given of the messages before `end`: strictly alternating, as many chat templates demand.

        An answer that never got a word is left out, and the questions around it become one.
        """
        context: list[ChatMessage] = []
        if self.settings.system:
            context.append(ChatMessage(role="system", content=self.settings.system))
        for message in self.messages[:end]:
            if message.role == "assistant" and not message.content:
                continue
            if context and context[-1].role == message.role:  # two windows asked at once, or an answer was deleted
                merged = f"{context.pop().content}\n\n{message.content}"
                context.append(ChatMessage(role=message.role, content=merged))
            else:
                context.append(_as_sent(message))
        return context

    # -- asking --------------------------------------------------------------------------------

    def ask(self, text: str, client: Client | None, save: Save) -> None:
        """Add the user's message and start fetching the answer. Only when none is being written."""
        self.say(text)
        self._fetch_new(client, save)

    def say(self, text: str) -> None:
        """Add the user's message. Only when no answer is being written."""
        self._check_idle()
        if not self.title:
            self.title = title_of(text)
        self.messages.append(Message("user", text))

    def edit(self, index: int, text: str, client: Client | None, save: Save) -> None:
        """Ask `text` instead of the user's message at `index`; what followed it goes."""
        self._check_idle()
        self.set_messages(self.messages[:index])
        self.ask(text, client, save)

    def regenerate(self, index: int, client: Client | None, save: Save) -> None:
        """Another answer instead of the one at `index`; what followed it goes."""
        self._check_idle()
        self.set_messages(self.messages[:index])
        self._fetch_new(client, save)

    def ask_several(self, index: int, count: int, client: Client | None, save: Save) -> None:
        """`count` answers, to pick from, instead of what stands at `index` and behind it."""
        self._check_idle()
        self.set_messages(self.messages[:index])
        self._fetch_new(client, save, [Message("assistant", "", "streaming") for _ in range(count - 1)])

    def go_on(self, client: Client | None, save: Save) -> None:
        """Continue the last answer where it stopped: one that begins with its text takes its place."""
        self._check_idle()
        context, answer = self.context(), self.messages[-1].copied()
        answer.facts.pop("error", None)
        self.set_messages([*self.messages[:-1], answer])
        self._fetch(answer, context, client, save, continues=True)

    async def stop(self, client: Client | None, patience_s: float | None = None) -> None:
        """End the answer being written and keep its text. Returns when it has ended, after `patience_s` at most (None:
        STOP_TIMEOUT_S); 0 takes what is here and waits for no last word of the daemon."""
        task, answer = self.task, self.answer
        if task is None or answer is None:
            return
        self.stopping = True
        self.changed()
        if client is not None and self.request_id is not None:
            try:
                await client.cancel(self.request_id)
                await asyncio.wait({task}, timeout=STOP_TIMEOUT_S if patience_s is None else patience_s)
            except DaemonGone:
                pass  # the task learns it too
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

    # -- changing what was said ----------------------------------------------------------------

    def set_messages(self, messages: list[Message]) -> None:
        """The chat is these messages from now on: some may have gone, some may be back."""
        kept = set(messages)
        for message in self.messages:
            if message not in kept:
                self._mark(message, deleted=True)
        for message in messages:
            if message in self.dropped:
                self._mark(message, deleted=False)
        self.messages = list(messages)
        self.changed()

    def fork(self, end: int) -> Conversation:
        """A new chat that starts as this one's first `end` messages."""
        child = Conversation(
            title=f"{self.title or 'chat'}'",
            messages=[message.copied() for message in self.messages[:end]],
            settings=self.settings,
            parent=self.id,
            forked_at=end,
        )
        child.changed()
        return child

    # -- inside --------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        if self.streaming:
            raise RuntimeError("an answer is being written")
        if self.followed is not None:
            raise ChatBusy(f"Another window writes an answer in {self.label}. This can be done when it has ended.")

    def _mark(self, message: Message, *, deleted: bool) -> None:
        (self.dropped.add if deleted else self.dropped.discard)(message)
        message.deleted = deleted
        message.version += 1

    def _fetch_new(self, client: Client | None, save: Save, others: Iterable[Message] = ()) -> None:
        context = self.context()
        answer = Message("assistant", "", "streaming", choices=list(others))
        self.messages.append(answer)
        self._fetch(answer, context, client, save)

    def _fetch(
        self, answer: Message, context: list[ChatMessage], client: Client | None, save: Save, continues: bool = False
    ) -> None:
        answer.status = "streaming"
        answer.edited()
        self.asked = answer
        self.request_id, self.stopping, self.held = uuid.uuid4().hex, False, False
        self.rate, self.asked_at = Rate(), time.time()
        asking = Asking(client, self.id, self.request_id, context, self.settings.options, continues, self.priority)
        self.task = asyncio.create_task(self._run(answer, asking, save))
        self.changed()

    async def _run(self, answer: Message, asking: Asking, save: Save) -> None:
        def progress(tokens: int) -> None:
            self.rate.saw(tokens)
            self.changed()

        try:
            await fetch(answer, asking, save, progress, lambda: self.stopping)
        finally:
            choosing.note_others(answer)
            self.held = answer.status == "error"
            self.unread = True
            self.request_id = None
            self.changed()


def title_of(text: str) -> str:
    """A chat's title from its first question: its first words, on one line."""
    words = " ".join(sanitize(text[:400]).split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"


def _as_sent(message: Message) -> ChatMessage:
    """Its reasoning in a field of its own: the model's template decides whether it is read again."""
    thought, text = split_reasoning(message.content) if message.role == "assistant" else (None, message.content)
    return ChatMessage(role=message.role, content=text, reasoning=thought or "")
