"""Small questions: yes or no, and one line of text."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from pagechat.text_safety import sanitize


class Confirm(ModalScreen[bool]):
    """Asks one question; true for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, detail: str = "", yes: str = "Yes", no: str = "No") -> None:
        super().__init__()
        self._question, self._detail, self._yes, self._no = question, detail, yes, no

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content.styled(sanitize(self._question), "bold"), markup=False)
            if self._detail:
                yield Static(Content(sanitize(self._detail)), classes="detail", markup=False)
            with Horizontal(classes="buttons"):
                yield Button(Content(self._yes), id="yes", variant="primary", compact=True)
                yield Button(Content(self._no), id="no", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class AskLine(ModalScreen[str | None]):
    """Asks for one line of text; None when the person changed their mind."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, value: str) -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content.styled(self._question, "bold"), markup=False)
            yield Input(self._value, max_length=200, compact=True)
            yield Static(Content.styled("enter accepts · esc cancels", "$muted"), classes="detail", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)
