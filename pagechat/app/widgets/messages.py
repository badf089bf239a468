"""How one message looks: a question as plain text, an answer as Markdown that grows without being redrawn.

While an answer streams, its finished top-level blocks are Markdown widgets, made once; the unfinished one is a
single cheap `Static`. (Appending to one Markdown widget costs more the longer a list or a fence grows.)
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from pagechat.app.conversation import Message, facts_line
from pagechat.app.prose import finished_blocks, has_references, make_parser, sketch, split_blocks
from pagechat.text_safety import sanitize

SHOWN_CHARACTERS = 8_000
"""Of a question; the rest is stored and sent, but not drawn."""


class Question(Static):
    """What the person wrote. Never parsed."""

    def __init__(self, message: Message) -> None:
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
        self._drawn = -1
        self._pieces: list[str] = []
        self._widgets: list[Markdown] = []
        self._tail = Static(classes="tail", markup=False)
        self._problem = Static(classes="problem", markup=False)
        self._facts = Static(classes="facts", markup=False)

    def compose(self) -> ComposeResult:
        yield self._tail
        yield self._problem
        yield self._facts

    @property
    def stale(self) -> bool:
        return self._drawn != self.message.version

    async def sync(self) -> None:
        """Draw what is new."""
        if not self.stale:
            return
        message = self.message
        self._drawn = message.version
        if message.status == "streaming":
            rest = message.shown[sum(map(len, self._pieces)) :]
            finished = finished_blocks(rest)
            await self._commit([*self._pieces, *finished])
            tail = rest[sum(map(len, finished)) :]
            self._tail.update(sketch(tail) if tail else Content.styled("…", "$muted"))
        else:
            text = message.shown
            await self._commit([text] if has_references(text) else split_blocks(text))
            self._tail.display = False
            self._facts.update(Content(facts_line(message)))
            error = message.facts.get("error")
            if isinstance(error, str):
                self._problem.update(Content(f"! {sanitize(error)}"))
        self._facts.display = message.status != "streaming"
        self._problem.display = "error" in message.facts

    async def _commit(self, pieces: list[str]) -> None:
        """Make the Markdown widgets those of `pieces`; those that stand already are left alone."""
        same = 0
        while same < min(len(pieces), len(self._pieces)) and pieces[same] == self._pieces[same]:
            same += 1
        for widget in self._widgets[same:]:
            await widget.remove()
        fresh = [Markdown(piece, parser_factory=make_parser, open_links=False) for piece in pieces[same:]]
        self._widgets[same:] = fresh
        self._pieces = pieces
        if fresh:
            await self.mount_all(fresh, before=self._tail)


def view_of(message: Message) -> Question | Answer:
    """The widget of a message. A system message looks like a question."""
    return Answer(message) if message.role == "assistant" else Question(message)
