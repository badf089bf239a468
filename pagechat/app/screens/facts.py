"""What is known of one message: tokens, times, blocks, and why the cache missed, with the text where it did."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from pagechat.app.client_api import Client
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message, tokens_per_s
from pagechat.client import ClientError
from pagechat.text_safety import sanitize

AROUND = 12
"""Tokens shown on each side of the place where the cache missed."""


class FactsScreen(ModalScreen[None]):
    """Closes with any of its keys. The text around a miss is asked of the daemon, which has the tokenizer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,i,q,enter", "dismiss", "Close")]

    def __init__(self, conversation: Conversation, index: int, client: Client | None, block_size: int | None) -> None:
        super().__init__()
        self._conversation, self._index = conversation, index
        self._client, self._block_size = client, block_size

    def compose(self) -> ComposeResult:
        message = self._conversation.messages[self._index]
        with VerticalScroll(classes="dialog facts"):
            yield Static(Content.styled("Facts of this message", "bold"), markup=False)
            yield Static(facts_table(message, self._block_size), classes="table", markup=False)
            yield Static(id="miss", markup=False)

    async def on_mount(self) -> None:
        message = self._conversation.messages[self._index]
        position = message.facts.get("miss_position")
        if isinstance(position, int) and self._client is not None:
            self.run_worker(self._show_miss(self._client, position), group="miss")

    async def _show_miss(self, client: Client, position: int) -> None:
        try:
            async with asyncio.timeout(5):
                pieces = await client.pieces(self._conversation.context(self._index))
        except (ClientError, TimeoutError):
            return  # the line in words stands already
        self.query_one("#miss", Static).update(miss_text(pieces, position))


def facts_table(message: Message, block_size: int | None) -> Content:
    """One fact a line; only those that are known."""
    facts = message.facts
    rows: list[tuple[str, str]] = [("role", message.role), ("ended", _ending(message))]
    prompt, cached, tokens = (_count(facts, name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens"))
    if prompt is not None:
        text = f"{prompt:,} tokens"
        if cached is not None:
            text += f": {cached:,} cached, {prompt - cached:,} computed"
        rows.append(("prompt", text))
    if tokens is not None:
        rows.append(("answer", f"{tokens:,} tokens"))
    if block_size and prompt is not None and tokens is not None:
        # the last token sampled has no KV yet
        blocks = -(-(prompt + max(0, tokens - 1)) // block_size)
        rows.append(("blocks", f"{blocks:,} of {block_size} tokens"))
    for name, label in (("ttft_s", "first token after"), ("total_s", "all after")):
        if isinstance(value := facts.get(name), int | float):
            rows.append((label, f"{value:.2f} s"))
    if (rate := tokens_per_s(facts)) is not None:
        rows.append(("speed", f"{rate:.1f} tokens/s"))
    if (preemptions := _count(facts, "preemptions")) is not None:
        rows.append(("preempted", "never" if not preemptions else f"{preemptions:,} times"))
    if isinstance(error := facts.get("error"), str):
        rows.append(("error", error))
    if isinstance(miss := facts.get("cache_miss"), str):
        rows.append(("cache miss", miss))
    lines = [Content.assemble((f"{label:<18}", "$muted"), sanitize(text)) for label, text in rows]
    return Content("\n").join(lines)


def miss_text(pieces: list[str], position: int) -> Content:
    """The prompt around the first token that was not in the cache: what agreed, the token, what follows."""
    before = "".join(pieces[max(0, position - AROUND) : position])
    token = pieces[position] if position < len(pieces) else "(the end)"
    after = "".join(pieces[position + 1 : position + 1 + AROUND])
    return Content.assemble(
        (
            f"The prompt from token {max(0, position - AROUND):,} on; the marked one is the first that missed:\n",
            "$muted",
        ),
        sanitize(before),
        (sanitize(token).replace("\n", "↵\n"), "bold $background on $warning"),
        (sanitize(after), "$muted"),
    )


def _ending(message: Message) -> str:
    reasons = {
        "stop": "by itself",
        "length": "cut: the token limit, or the context is full",
        "abort": "stopped by you",
        "error": "with an error",
    }
    if message.role != "assistant" or message.status == "streaming":
        return "still being written" if message.status == "streaming" else "complete"
    reason = message.facts.get("finish_reason")
    return reasons.get(reason, message.status) if isinstance(reason, str) else message.status


def _count(facts: dict[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None
