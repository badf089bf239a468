"""A chat as the app holds it: messages, the answer being written, and how an answer is fetched.

Everything here runs on the event loop and knows no widget: a chat goes on streaming whether or not
anything draws it. Views look at `Conversation.version` to see whether there is something new.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engine.protocol import Accepted, ChatMessage, ChatOptions, Delta, Finished, Snapshot, Status, StepReport
from pagechat.client import DaemonGone, RequestFailed
from pagechat.store import Chat, MessageStatus, Role, StoredMessage
from pagechat.text_safety import sanitize

TITLE_LENGTH = 40
STOP_TIMEOUT_S = 3.0
"""How long a stopped answer may wait for the daemon's last word before it ends without."""

TabState = Literal["idle", "streaming", "unread", "error"]


class Reports(Protocol):
    """A telemetry subscription."""

    def __aiter__(self) -> AsyncIterator[StepReport]: ...

    def close(self) -> None: ...


class Client(Protocol):
    """What the app needs of `pagechat.client.AsyncEngineClient`."""

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        session: str | None = None,
        options: ChatOptions | None = None,
        request_id: str | None = None,
        keep: bool = False,
    ) -> AsyncIterator[Accepted | Delta | Finished]: ...

    async def cancel(self, request_id: str) -> None: ...

    async def status(self) -> Status: ...

    async def snapshot(self) -> Snapshot: ...

    def telemetry(self) -> Reports: ...

    async def stop_daemon(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class Message:
    """One message. `content` is what was said; `shown` is the same, safe to display."""

    role: Role
    content: str
    status: MessageStatus = "complete"
    facts: dict[str, Any] = field(default_factory=dict)
    stored_id: int | None = None
    """Row in the store; None: not saved yet."""
    version: int = 0
    """Grows with every change."""
    shown: str = ""

    def __post_init__(self) -> None:
        self.shown = sanitize(self.content)

    def append(self, text: str) -> None:
        self.content += text
        self.shown += sanitize(text)
        self.version += 1

    def end(self, status: MessageStatus, content: str | None = None) -> None:
        """No more text comes. `content` replaces what was streamed, when given."""
        if content is not None:
            self.content = content
        self.shown = sanitize(self.content)
        self.status = status
        self.version += 1


@dataclass(eq=False, slots=True)
class Conversation:
    """An open chat. Its id is also the session under which the engine knows its blocks."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    title: str = ""
    messages: list[Message] = field(default_factory=list)
    unread: bool = False
    version: int = 0
    """Grows with every change of title, messages or state."""
    task: asyncio.Task[None] | None = None
    """Fetches the answer being written."""
    request_id: str | None = None
    stopping: bool = False
    saved_title: str | None = None
    """Title in the store; None: the chat is not there yet."""

    @classmethod
    def restored(cls, chat: Chat, messages: Iterable[StoredMessage]) -> Conversation:
        held = [Message(m.role, m.content, m.status, m.facts, m.id) for m in messages]
        return cls(id=chat.id, title=chat.title, messages=held, saved_title=chat.title)

    @property
    def answer(self) -> Message | None:
        """The answer being written, if one is."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and self.task is not None and last.status == "streaming" else None

    @property
    def streaming(self) -> bool:
        return self.answer is not None

    @property
    def state(self) -> TabState:
        if self.streaming:
            return "streaming"
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

    def context(self) -> list[ChatMessage]:
        """What the model is given: strictly alternating, as many chat templates demand.

        An answer that never got a word is left out, and the questions around it become one.
        """
        context: list[ChatMessage] = []
        for message in self.messages:
            if message.role == "assistant" and not message.content:
                continue
            if context and context[-1].role == message.role == "user":
                merged = f"{context.pop().content}\n\n{message.content}"
                context.append(ChatMessage(role="user", content=merged))
            else:
                context.append(ChatMessage(role=message.role, content=message.content))
        return context

    # -- asking --------------------------------------------------------------------------------

    def ask(self, text: str, client: Client | None, save: Callable[[], Awaitable[None]]) -> None:
        """Add the user's message and start fetching the answer. Only when none is being written."""
        if self.streaming:
            raise RuntimeError("an answer is being written")
        if not self.title:
            self.title = title_of(text)
        self.messages.append(Message("user", text))
        context = self.context()
        answer = Message("assistant", "", "streaming")
        self.messages.append(answer)
        self.request_id, self.stopping = uuid.uuid4().hex, False
        self.task = asyncio.create_task(self._fetch(answer, context, client, save))
        self.changed()

    async def stop(self, client: Client | None) -> None:
        """End the answer being written and keep its text. Returns when it has ended."""
        task, answer = self.task, self.answer
        if task is None or answer is None:
            return
        self.stopping = True
        self.changed()
        if client is not None and self.request_id is not None:
            try:
                await client.cancel(self.request_id)
                await asyncio.wait({task}, timeout=STOP_TIMEOUT_S)
            except DaemonGone:
                pass  # the task learns it too
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _fetch(
        self, answer: Message, context: list[ChatMessage], client: Client | None, save: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await save()
            if client is None:
                raise DaemonGone("there is no daemon at the moment")
            async for message in client.chat(context, session=self.id, request_id=self.request_id, keep=True):
                if isinstance(message, Accepted):
                    answer.facts["prompt_tokens"] = message.prompt_tokens
                elif isinstance(message, Delta):
                    answer.append(message.text)
                    answer.facts["completion_tokens"] = message.tokens
                else:
                    _finish(answer, message)
                self.changed()
            if answer.status == "streaming":
                _fail(answer, "the answer broke off without an end")
        except (RequestFailed, DaemonGone) as error:
            if self.stopping:
                answer.end("stopped")
            elif isinstance(error, RequestFailed) and error.code == "too_long" and len(context) > 1:
                _fail(answer, f"{error}. The chat so far is part of the prompt; a new chat (ctrl+n) starts without it.")
            else:
                _fail(answer, str(error) or type(error).__name__)
        except asyncio.CancelledError:
            answer.end("stopped")
        except Exception as error:  # one broken answer must not take the others down
            _fail(answer, f"{type(error).__name__}: {error}")
        finally:
            self.unread = True
            self.request_id = None
            self.changed()


def title_of(text: str) -> str:
    """A chat's title from its first question: its first words, on one line."""
    words = " ".join(sanitize(text[:400]).split())
    return words if len(words) <= TITLE_LENGTH else words[: TITLE_LENGTH - 1].rstrip() + "…"


def _finish(answer: Message, finished: Finished) -> None:
    answer.facts |= {
        "finish_reason": finished.finish_reason,
        "prompt_tokens": finished.usage.prompt_tokens,
        "cached_tokens": finished.usage.cached_tokens,
        "completion_tokens": finished.usage.completion_tokens,
        "ttft_s": finished.timing.ttft_s,
        "total_s": finished.timing.total_s,
        "cache_miss": finished.miss,
    }
    answer.end("stopped" if finished.finish_reason == "abort" else "complete", finished.text)


def _fail(answer: Message, reason: str) -> None:
    answer.facts["error"] = reason
    answer.end("error")


def facts_line(message: Message) -> str:
    """Counts and timings of an answer in one line: `128 tokens · 23.4 tok/s · first after 0.21 s · ...`."""
    facts = message.facts
    tokens, ttft, total = facts.get("completion_tokens"), facts.get("ttft_s"), facts.get("total_s")
    parts = []
    if isinstance(tokens, int):
        parts.append(f"{tokens:,} token{'' if tokens == 1 else 's'}")
        if isinstance(ttft, int | float) and isinstance(total, int | float) and tokens > 1 and total > ttft:
            parts.append(f"{(tokens - 1) / (total - ttft):.1f} tok/s")
    if isinstance(ttft, int | float):
        parts.append(f"first after {ttft:.2f} s")
    prompt, cached = facts.get("prompt_tokens"), facts.get("cached_tokens")
    if isinstance(prompt, int):
        parts.append(f"prompt {prompt:,}" + (f" (cached {cached:,})" if isinstance(cached, int) else ""))
    if isinstance(miss := facts.get("cache_miss"), str):
        parts.append(" ".join(sanitize(miss).split()))
    if message.status == "stopped":
        parts.append("stopped")
    elif facts.get("finish_reason") == "length":
        parts.append("cut at the token limit")
    return " · ".join(parts)
