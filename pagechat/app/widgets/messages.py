"""How one message looks: a question as plain text, an answer as Markdown that grows without being redrawn.

An answer is a few `Prose` widgets of some thousand characters each. While it streams, its finished top-level blocks
stand in them, drawn once; the unfinished one is drawn again and again, in a widget of its own.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message as Event
from textual.selection import Selection
from textual.widgets import Static

from pagechat.app.drawing import failed
from pagechat.app.message import Message, facts_line
from pagechat.app.painting import LaidOutOnce
from pagechat.app.prose import (
    THOUGHT,
    draw,
    finished_blocks,
    sketch,
    split_blocks,
    split_reasoning,
)
from pagechat.app.rows import Rows
from pagechat.app.widgets.line import Line
from pagechat.app.widgets.passage import Passage
from pagechat.text_safety import sanitize

CHUNK = 3_000
"""Characters of one Prose widget, about: laying one out again, as the last one grows, stays cheap."""
SHOWN_CHARACTERS = 8_000
"""Of a question; the rest is stored and sent, but not drawn."""
THINKING_CHARACTERS = 300
"""The end of what is being thought, while it is."""


class Question(LaidOutOnce, Static):
    """What the person wrote. Never parsed."""

    def __init__(self, message: Message) -> None:
        self.message = message
        shown = message.shown
        content = Content(shown[:SHOWN_CHARACTERS].rstrip())
        if len(shown) > SHOWN_CHARACTERS:
            more = f"\n… and {len(shown) - SHOWN_CHARACTERS:,} more characters, sent in full"
            content = Content.assemble(content, (more, "$muted italic"))
        super().__init__(content, markup=False)


class Answer(LaidOutOnce, Vertical):
    """What the model wrote, so far."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message
        self.unfolded = False
        """All of the reasoning is shown."""
        self._drawn: tuple[int, bool] | None = None
        self._pieces: list[str] = []
        self._chunks: list[list[str]] = []
        self._widgets: list[Prose] = []
        self._reasoning = Line(classes="reasoning")
        self._tail = Tail(classes="tail")
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
        self._drawn = (self.message.version, self.unfolded)
        try:
            await self._draw()
        except Exception as error:
            failed(error)
            await self._draw_plainly()

    async def _draw_plainly(self) -> None:
        """As it was written, with nothing read into it: what is left when that failed."""
        await self._commit([])
        self._reasoning.display = False
        self._tail.display = True
        self._tail.show(Passage([Rows.of_text(self.message.shown)]))

    async def _draw(self) -> None:
        message = self.message
        streaming = message.status == "streaming"
        thought, text = split_reasoning(message.shown)
        self._show_reasoning(thought, thinking=streaming and THOUGHT not in message.shown)
        if streaming:
            await self._draw_growing(text, thought is not None)
        else:
            await self._commit(split_blocks(text))
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
        self._tail.show(Passage([sketch(tail)]) if tail else Content.styled("…", "$muted"))

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
        self._reasoning.show(text)

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
        for widget, before, chunk in zip(self._widgets[same:], self._chunks[same:], chunks[same:], strict=False):
            widget.become(before, chunk)
        fresh = [Prose(chunk) for chunk in chunks[len(self._widgets) :]]
        self._widgets[len(chunks) :] = fresh
        self._chunks = chunks
        if fresh:
            await self.mount_all(fresh, before=self._tail)


class Tail(Line):
    """The end of an answer that is being written."""

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        return selection.extract(str(self.visual)), "\n"


class Prose(LaidOutOnce, Static):
    """A piece of an answer."""

    class LinkClicked(Event):
        def __init__(self, href: str) -> None:
            super().__init__()
            self.href = href

    def __init__(self, pieces: list[str]) -> None:
        """`pieces`: top-level blocks of Markdown."""
        self._passage = Passage(map(draw, pieces))
        super().__init__(self._passage, markup=False)
        self.auto_links = False  # links have a look of their own; looking for them costs as much as wrapping

    def become(self, before: list[str], pieces: list[str]) -> None:
        """Show `pieces` from now on, in place of `before`."""
        if pieces[: len(before)] == before:
            end = self.content_size.height
            self._passage.extend(map(draw, pieces[len(before) :]))
            grown = self._passage.get_height(self.styles.get_rules(), self.content_size.width) - end
            self.refresh(Region(0, end, self.content_size.width, grown + self.gutter.bottom), layout=True)
        else:
            self._passage = Passage(map(draw, pieces))
            self.update(self._passage)

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        if size.width == self._size.width and size.height > self._size.height:
            self._size = size  # it has grown at its end: the lines above stay as they were drawn
        return super()._size_updated(size, virtual_size, container_size, layout)

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        return selection.extract(str(self._passage)), "\n"

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._passage.forget_lines()

    def action_link(self, href: str) -> None:
        self.post_message(self.LinkClicked(href))


def _chunks(pieces: list[str]) -> list[list[str]]:
    """The pieces in order, those of a chunk together of about `CHUNK` characters."""
    chunks: list[list[str]] = []
    room = 0
    for piece in pieces:
        if len(piece) > room or not chunks:
            chunks.append([])
            room = CHUNK
        chunks[-1].append(piece)
        room -= len(piece)
    return chunks
