"""Several answers to one question, side by side where there is room, to pick one from."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from pagechat.app.choosing import MOST
from pagechat.app.message import Message
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.messages import Answer, Question

NARROWEST = 24
"""Cells of a column; with less, the answers stand below each other."""

_NUMBERS = tuple(str(number) for number in range(1, MOST + 1))


class Candidates(Answer, can_focus=True):
    """Draws the candidates of `message`. A mark is on one of them; `answer.pick` takes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "mark(-1)", show=False),
        Binding("right,down,tab", "mark(1)", show=False),
        Binding("enter", "pick", "Pick", show=True),
        *(Binding(n, f"screen.command('answer.pick', '{n}')", show=False) for n in _NUMBERS),
    ]

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.marked = 0
        self._cells = [_Candidate(one, number) for number, one in enumerate(message.candidates)]
        self._hint = Static(classes="hint", markup=False)
        self._seen: object = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="columns"):
            yield from self._cells
        yield self._hint

    @property
    def stale(self) -> bool:
        return self._seen != self._state

    @property
    def _state(self) -> object:
        return self.marked, [(one.version, one.status) for one in self.message.candidates]

    async def sync(self) -> None:
        if not self.stale:
            return
        self._seen = self._state
        for number, cell in enumerate(self._cells):
            await cell.sync(number == self.marked)
        keys = f"1 to {len(self._cells)}, or enter on the marked one, picks; the others are kept with it"
        waits = "esc twice stops them · " if self.message.growing else ""
        self._hint.update(Content.styled(f"{waits}{keys}", "$muted"))

    def on_mount(self) -> None:
        self.focus(scroll_visible=False)

    def on_resize(self, event: events.Resize) -> None:
        columns = self.query_one(".columns")
        columns.styles.grid_size_columns = columns_for(len(self._cells), event.size.width)

    async def _on_key(self, event: events.Key) -> None:
        # Whoever goes on writing writes into the input, and does not press the keys of messages.
        if event.character is not None and event.is_printable and event.key not in _NUMBERS:
            event.stop()
            event.prevent_default()
            composer = self.screen.query_one(Composer)
            composer.focus()
            composer.insert(event.character)

    def action_mark(self, by: int) -> None:
        self._mark((self.marked + by) % len(self._cells))

    async def action_pick(self) -> None:
        await self.screen.run_action(f"command('answer.pick', '{self.marked + 1}')")

    def on_click(self, event: events.Click) -> None:
        for widget in event.widget.ancestors_with_self if event.widget else ():
            if isinstance(widget, _Candidate):
                self._mark(widget.number)
                if event.chain == 2:
                    self.call_later(self.action_pick)

    def _mark(self, number: int) -> None:
        self.marked = number
        self.run_worker(self.sync(), group="mark")


class _Candidate(Vertical):
    """One of the answers: its number and state, then what it says."""

    def __init__(self, message: Message, number: int) -> None:
        super().__init__()
        self.number = number
        self._message = message
        self._head = Static(classes="head", markup=False)
        self._answer = Answer(message)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._answer

    async def sync(self, marked: bool) -> None:
        self.set_class(marked, "-marked")
        tokens = self._message.facts.get("completion_tokens", 0)
        state = {"streaming": "●", "error": "!"}.get(self._message.status, "◆")
        mark = "▶" if marked else " "
        self._head.update(Content.assemble((f"{mark}{self.number + 1} ", "bold"), f"{state} {tokens:,} tokens"))
        await self._answer.sync()


def columns_for(count: int, width: int) -> int:
    """Columns that `count` answers stand in: as many as can be read, the rows about equally long."""
    most = max(1, min(count, width // NARROWEST))
    return -(-count // -(-count // most))


def view_of(message: Message) -> Question | Answer:
    """The widget of a message. A system message looks like a question."""
    if message.role != "assistant":
        return Question(message)
    return Candidates(message) if message.choices else Answer(message)
