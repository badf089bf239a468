"""One message of a chat, and what is known about an answer, in one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pagechat.app.prose import with_reasoning
from pagechat.protocol import Finished
from pagechat.store import MessageStatus, Role, StoredMessage
from pagechat.text_safety import sanitize


@dataclass(eq=False, slots=True)
class Message:
    """One message. `content` is what was said; `shown` is the same, safe to display."""

    role: Role
    content: str
    status: MessageStatus = "complete"
    facts: dict[str, Any] = field(default_factory=dict)
    stored_id: int | None = None
    """Row in the store; None: not saved yet."""
    deleted: bool = False
    """No longer part of the chat; it may come back."""
    version: int = 0
    """Grows with every change."""
    edits: int = 0
    """Grows with every change of what the store has of it, but for its deletion."""
    here: bool = True
    """This window writes it; False: another one on the same chat does, and this one only follows."""
    saved_edits: int = -1
    """`edits` of what the store has."""
    saved_deleted: bool = False
    shown: str = ""
    choices: list[Message] = field(default_factory=list)
    """Other answers that came with this one, while a person has not yet picked one of them all."""

    @property
    def candidates(self) -> list[Message]:
        """All answers to pick from, this one first; of an ordinary message only itself."""
        return [self, *self.choices]

    @property
    def growing(self) -> bool:
        """It, or one that came with it, is still being written."""
        return any(one.status == "streaming" for one in self.candidates)

    def __post_init__(self) -> None:
        self.shown = sanitize(self.content)

    def append(self, text: str) -> None:
        self.shown += sanitize(text, self.content)
        self.content += text
        self.edited()

    def end(self, status: MessageStatus, content: str | None = None) -> None:
        """No more text comes. `content` replaces what was streamed, when given."""
        if content is not None:
            self.content = content
        self.shown = sanitize(self.content)
        self.status = status
        self.edited()

    def note(self, **facts: Any) -> None:
        self.facts |= facts
        self.edited()

    def edited(self) -> None:
        self.version += 1
        self.edits += 1

    @property
    def unsaved(self) -> bool:
        """The store has not all of it."""
        if self.stored_id is None:
            return not self.deleted  # what came and went between two saves is nobody's
        return self.saved_edits != self.edits or self.saved_deleted != self.deleted

    def copied(self) -> Message:
        """The same, as a message of another chat."""
        status: MessageStatus = "stopped" if self.status == "streaming" else self.status
        return Message(self.role, self.content, status, dict(self.facts))


def restored(stored: StoredMessage) -> Message:
    """As the store has it."""
    message = Message(stored.role, stored.content, stored.status, stored.facts, stored.id)
    message.here, message.deleted, message.saved_deleted = stored.here, stored.deleted, stored.deleted
    message.saved_edits = message.edits
    return message


def finish(answer: Message, finished: Finished, before: str = "") -> None:
    """The answer's end as the daemon told it. `before`: its text when it was continued."""
    answer.facts |= {
        "finish_reason": finished.finish_reason,
        "prompt_tokens": finished.usage.prompt_tokens,
        "cached_tokens": finished.usage.cached_tokens,
        "completion_tokens": finished.usage.completion_tokens,
        "ttft_s": finished.timing.ttft_s,
        "total_s": finished.timing.total_s,
        "cache_miss": finished.miss,
        "miss_position": finished.miss_position,
    }
    answer.end(
        "stopped" if finished.finish_reason == "abort" else "complete",
        before + with_reasoning(before, finished.reasoning, finished.text),
    )


def fail(answer: Message, reason: str) -> None:
    answer.facts["error"] = reason
    answer.end("error")


def tokens_per_s(facts: dict[str, Any]) -> float | None:
    """Of an answer, its first token left out; None when the facts do not tell."""
    tokens, ttft, total = facts.get("completion_tokens"), facts.get("ttft_s"), facts.get("total_s")
    if not isinstance(tokens, int) or not isinstance(ttft, int | float) or not isinstance(total, int | float):
        return None
    return (tokens - 1) / (total - ttft) if tokens > 1 and total > ttft else None


def facts_line(message: Message) -> str:
    """Counts and timings of an answer in one line: `128 tokens · 23.4 tok/s · first after 0.21 s · ...`."""
    facts = message.facts
    tokens, ttft, rate = facts.get("completion_tokens"), facts.get("ttft_s"), tokens_per_s(facts)
    parts = []
    if isinstance(tokens, int):
        parts.append(f"{tokens:,} token{'' if tokens == 1 else 's'}")
    if rate is not None:
        parts.append(f"{rate:.1f} tok/s")
    if isinstance(ttft, int | float):
        parts.append(f"first after {ttft:.2f} s")
    prompt, cached = facts.get("prompt_tokens"), facts.get("cached_tokens")
    if isinstance(prompt, int):
        parts.append(f"prompt {prompt:,}" + (f" (cached {cached:,})" if isinstance(cached, int) else ""))
    if isinstance(miss := facts.get("cache_miss"), str):
        parts.append(" ".join(sanitize(miss).split()))
    if isinstance(others := facts.get("alternatives"), list) and others and not message.choices:
        parts.append(f"{len(others)} other{'' if len(others) == 1 else 's'} kept (/others)")
    if message.status == "stopped":
        parts.append("stopped")
    elif facts.get("finish_reason") == "length":
        parts.append("cut at the token limit")
    return " · ".join(parts)
