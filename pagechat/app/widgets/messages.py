"""How one message looks: a question as plain text, an answer as Markdown that grows without being redrawn.

An answer is a few `Prose` widgets of some thousand characters each. While it streams, its finished top-level blocks
stand in them, drawn once; the unfinished one is drawn again and again, in a widget of its own.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Static

from pagechat.app.message import Message, facts_line
from pagechat.app.prose import (
    THOUGHT,
    draw,
    finished_blocks,
    has_references,
    sketch,
    split_blocks,
    split_reasoning,
)
from pagechat.text_safety import sanitize

CHUNK = 3_000
"""Characters of one Prose widget, about: laying one out again, as the last one grows, stays cheap."""
SHOWN_CHARACTERS = 8_000
"""Of a question; the rest is stored and sent, but not drawn."""
THINKING_CHARACTERS = 300
"""The end of what is being thought, while it is."""


class Question(Static):
    """What the person wrote. Never parsed."""

    def __init__(self, message: Message) -> None:
        self.message = message
        shown = message.shown
        content = Content(shown[:SHOWN_CHARACTERS].rstrip())
        if len(shown) > SHOWN_CHARACTERS:
            more = f"\n… and {len(shown) - SHOWN_CHARACTERS:,} more characters, sent in full"
            content = Content.assemble(content, (more, "$muted italic"))
        super().__init__(content, markup=False)


class Answer(Vertical):
    """What the model wrote, so far."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message
        self.unfolded = False
        """All of the reasoning is shown."""
        self._drawn: tuple[int, bool] | None = None
        self._pieces: list[str] = []
        self._chunks: list[str] = []
        self._widgets: list[Prose] = []
        self._reasoning = Static(classes="reasoning", markup=False)
        self._tail = Static(classes="tail", markup=False)
        self._problem = Static(classes="problem", markup=False)
        self._facts = Static(classes="facts", markup=False)

    def compose(self) -> ComposeResult:
        yield self._reasoning
        yield self._tail
        yield self._problem
        yield self._facts

    @property
    def stale(self) -> bool:
        return self._drawn != (self.message.version, self.unfolded)

    async def sync(self) -> None:
        """Draw what is new."""
        if not self.stale:
            return
        message = self.message
        self._drawn = (message.version, self.unfolded)
        streaming = message.status == "streaming"
        thought, text = split_reasoning(message.shown)
        self._show_reasoning(thought, thinking=streaming and THOUGHT not in message.shown)
        if streaming:
            await self._draw_growing(text, thought is not None)
        else:
            await self._commit([text] if has_references(text) else split_blocks(text))
            self._tail.display = False
            self._facts.update(Content(facts_line(message)))
            error = message.facts.get("error")
            if isinstance(error, str):
                self._problem.update(Content(f"! {sanitize(error)}"))
        self._facts.display = not streaming
        self._problem.display = "error" in message.facts

    async def _draw_growing(self, text: str, thinks: bool) -> None:
        done = sum(map(len, self._pieces))
        if not text.startswith("".join(self._pieces)):  # it is continued: what stood as its end may be no end
            await self._commit([])
            done = 0
        finished = finished_blocks(text[done:])
        await self._commit([*self._pieces, *finished])
        tail = text[done + sum(map(len, finished)) :]
        self._tail.display = bool(tail) or not thinks
        self._tail.update(sketch(tail) if tail else Content.styled("…", "$muted"))

    def _show_reasoning(self, thought: str | None, *, thinking: bool) -> None:
        self._reasoning.display = thought is not None
        if thought is None:
            return
        words = len(thought.split())
        if thinking:
            text = Content.assemble(("thinking … ", "bold"), thought[-THINKING_CHARACTERS:])
        elif self.unfolded:
            text = Content.assemble((f"▾ thought, {words:,} words\n", "bold"), thought)
        else:
            text = Content(f"▸ thought, {words:,} words (click, or t, to read)")
        self._reasoning.update(text)

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._reasoning:
            self.unfolded = not self.unfolded
            self.run_worker(self.sync(), group="fold")

    async def _commit(self, pieces: list[str]) -> None:
        """Make the Prose widgets those of `pieces`; those whose pieces have not changed are left alone."""
        if pieces == self._pieces:
            return
        self._pieces = pieces
        chunks = _chunks(pieces)
        same = 0
        while same < min(len(chunks), len(self._chunks)) and chunks[same] == self._chunks[same]:
            same += 1
        for widget in self._widgets[len(chunks) :]:
            await widget.remove()
        for widget, chunk in zip(self._widgets[same:], chunks[same:], strict=False):
            widget.update(draw(chunk))
        fresh = [Prose(draw(chunk)) for chunk in chunks[len(self._widgets) :]]
        self._widgets[len(chunks) :] = fresh
        self._chunks = chunks
        if fresh:
            await self.mount_all(fresh, before=self._tail)


class Prose(Static):
    """A piece of an answer."""

    class LinkClicked(Event):
        def __init__(self, href: str) -> None:
            super().__init__()
            self.href = href

    def __init__(self, content: Content) -> None:
        super().__init__(content, markup=False)

    def action_link(self, href: str) -> None:
        self.post_message(self.LinkClicked(href))


def _chunks(pieces: list[str]) -> list[str]:
    """The pieces in order, joined to chunks of about `CHUNK` characters."""
    chunks: list[str] = []
    for piece in pieces:
        if chunks and len(chunks[-1]) + len(piece) <= CHUNK:
            chunks[-1] += piece
        else:
            chunks.append(piece)
    return chunks
