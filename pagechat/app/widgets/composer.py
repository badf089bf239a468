"""Where the person writes: several lines, enter sends, a paste of any size is only text."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from pagechat.app.conversation import Conversation
from pagechat.app.widgets.completions import Completions

HISTORY = 100
NEW_LINE = ("ctrl+j", "shift+enter", "ctrl+enter", "alt+enter", "shift+\r", "ctrl+\r")
"""Which of them arrives as something else than enter depends on the terminal; ctrl+j always does. The last two are how
Textual reads xterm's modifyOtherKeys."""
WRAPPED_CHARACTERS = 50_000
"""A longer text is shown unwrapped: wrapping a megabyte takes seconds, and again with every resize."""


class Composer(TextArea):
    """A multi-line input. Enter posts `Submitted` and clears: what is typed next is another text. A text that cannot be
    sent comes back by `give_back`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", priority=False),
        *(Binding(key, "newline", "New line", show=False) for key in NEW_LINE),
        Binding("pageup", "app.scroll_chat(-1)", show=False),
        Binding("pagedown", "app.scroll_chat(1)", show=False),
    ]

    class Submitted(Message):
        def __init__(self, text: str, chat: Conversation | None) -> None:
            super().__init__()
            self.text, self.chat = text, chat

    def __init__(self, completions: Completions, take_back: Callable[[], str | None]) -> None:
        """`take_back` gives the prompt that was queued last, for `up` in an empty input."""
        super().__init__(
            id="composer",
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Write a message, or / for commands",
        )
        self._completions = completions
        self._take_back = take_back
        self.chat: Conversation | None = None
        """The one that the text is written in."""
        self._sent: list[str] = []
        self._recalled: int | None = None

    def render_line(self, y: int) -> Strip:
        # TextArea cannot wrap its placeholder into no width at all.
        return super().render_line(y) if self.content_size.width > 0 else Strip.blank(0)

    def action_submit(self) -> None:
        text = self.text
        self.post_message(self.Submitted(text, self.chat))
        if text.strip():
            self.remember(text)
            self.fill("")

    def action_newline(self) -> None:
        self.insert("\n")
        self.scroll_cursor_visible()

    def remember(self, text: str) -> None:
        """`up` in an empty input brings it back."""
        if text.strip():
            self._sent = [*self._sent[-HISTORY + 1 :], text]
        self._recalled = None

    def give_back(self, text: str) -> None:
        """It could not be sent: here it is again, before what was typed since."""
        if self._sent and self._sent[-1] == text:
            self._sent.pop()
        self.fill("\n".join(part for part in (text, self.text) if part))

    def fill(self, text: str) -> None:
        """Another text, the cursor at its end."""
        self.soft_wrap = len(text) <= WRAPPED_CHARACTERS
        self.text = text
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        # Before TextArea sees them: there, enter would insert a line break.
        if self._handles(event.key):
            event.stop()
            event.prevent_default()

    def _handles(self, key: str) -> bool:
        completions = self._completions
        if key == "enter":
            if completions.chosen is not None and self.text.strip() != f"/{completions.chosen.slash}":
                self._complete()
            else:
                self.action_submit()
        elif key in NEW_LINE:
            self.action_newline()
        elif completions.display and key in ("up", "down", "tab"):
            if key == "tab":
                self._complete()
            else:
                completions.step(-1 if key == "up" else 1)
        else:
            return key in ("up", "down") and self._recall(-1 if key == "up" else 1)
        return True

    def _complete(self) -> None:
        """The chosen slash command into the input, and a place for its argument."""
        command = self._completions.chosen
        if command is not None:
            self.fill(f"/{command.slash}{' ' if command.argument else ''}")

    async def _on_paste(self, event: events.Paste) -> None:
        # Carriage returns are how terminals paste line ends; as text they are line ends too.
        event.prevent_default()
        event.stop()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) + len(self.text) > WRAPPED_CHARACTERS:
            self.soft_wrap = False
        self.replace(text, *self.selection, maintain_selection_offset=False)
        self.scroll_cursor_visible()

    def _recall(self, step: int) -> bool:
        """Walk through what was sent, from an empty input or from a recalled text not edited since. What waits in
        the queue comes first."""
        at = self._recalled
        if at is None:
            if step > 0 or self.text:
                return False
            if (queued := self._take_back()) is not None:
                self.fill(queued)
                return True
            if not self._sent:
                return False
            at = len(self._sent)
        elif self.text != self._sent[at] or self.cursor_location[0] != (
            0 if step < 0 else self.document.line_count - 1
        ):
            return False
        at += step
        if at < 0:
            return True
        self._recalled = at if at < len(self._sent) else None
        self.fill("" if self._recalled is None else self._sent[at])
        return True
