"""Shown until the engine is ready: what it does, how far it is, and what to do when it fails."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from engine.protocol import LoadProgress
from pagechat.app.link import LinkState
from pagechat.text_safety import sanitize

STAGES = {
    "starting": "Starting the engine",
    "fetching": "Fetching the model",
    "converting": "Converting the model (once)",
    "loading": "Loading the weights",
    "warming": "Warming up",
}
BAR_WIDTH = 44


class LoadingScreen(ModalScreen[None]):
    """Draws `LinkState`s; posts `Retry`, and `TypedAhead` for what is typed or pasted before the engine is ready."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "retry", "Try again", show=False),
        Binding("q,escape", "give_up", "Quit", show=False),
    ]

    class Retry(Message):
        pass

    class TypedAhead(Message):
        """Text that belongs to the composer behind this screen."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, state: LinkState) -> None:
        super().__init__()
        self._state = state
        self._since = time.monotonic()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog loading"):
            yield Static(
                Content.assemble(("pagechat", "bold $primary"), ("   a chat and its memory, block by block", "$muted")),
                markup=False,
            )
            yield Static(id="stage", markup=False)
            yield Static(id="bar", markup=False)
            yield Static(id="detail", classes="detail", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Try again", id="retry", variant="primary", compact=True)
                yield Button("Quit", id="quit", compact=True)

    def on_mount(self) -> None:
        self.show(self._state)
        self.set_interval(1.0, lambda: self.show(self._state))  # the seconds go on between two reports

    def show(self, state: LinkState) -> None:
        """Draw this state."""
        self._state = state
        if not self.is_mounted:
            return
        stage, bar, detail = (self.query_one(name, Static) for name in ("#stage", "#bar", "#detail"))
        failed = state.phase == "failed"
        buttons = self.query_one(".buttons")
        if buttons.display != failed:
            buttons.display = failed
            if failed:
                self.query_one("#retry", Button).focus()
        bar.display = not failed
        if failed:
            stage.update(Content.styled("The engine did not start", "bold $error"))
            detail.update(Content(f"{sanitize(state.reason)}\n\n{advice(state)}"))
            return
        load = state.status.load if state.status else None
        seconds = f"{time.monotonic() - self._since:.0f} s"
        if load is None:
            stage.update(Content("Looking for the daemon, or starting one"))
            bar.update(progress_bar(0, 0))
            detail.update(Content(sanitize(state.reason) or seconds))
        else:
            stage.update(Content(STAGES[load.stage]))
            bar.update(progress_bar(load.done, load.total))
            detail.update(Content(" · ".join(part for part in (sanitize(load.detail), _amount(load), seconds) if part)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Single letters are keys of this screen only once there is something to choose."""
        return self._state.phase == "failed" if action in ("retry", "give_up") else True

    def on_key(self, event: events.Key) -> None:
        if self._state.phase != "failed" and event.is_printable and event.character:
            event.stop()
            event.prevent_default()
            self.post_message(self.TypedAhead(event.character))

    def on_paste(self, event: events.Paste) -> None:
        if self._state.phase != "failed":
            event.stop()
            self.post_message(self.TypedAhead(event.text))

    def action_give_up(self) -> None:
        self.app.exit()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "quit":
            self.app.exit()
        else:
            self.action_retry()

    def action_retry(self) -> None:
        if self._state.phase == "failed":
            self._since = time.monotonic()
            self.post_message(self.Retry())


def progress_bar(done: int, total: int) -> Content:
    """A bar of `BAR_WIDTH` cells and per cent; only the track when the total is unknown."""
    if total <= 0:
        return Content.styled("─" * BAR_WIDTH, "$frame")
    share = min(1.0, max(0.0, done / total))
    full = round(share * BAR_WIDTH)
    return Content.assemble(
        ("━" * full, "$accent"), ("─" * (BAR_WIDTH - full), "$frame"), (f"  {100 * share:3.0f} %", "bold")
    )


def advice(state: LinkState) -> str:
    """What a person can do about a failure."""
    if state.status is not None:
        return "Press r to start a new daemon. Another model: pagechat --model DIRECTORY."
    return "Press r to try again. `pagechat-daemon status` and `pagechat-daemon serve` in another terminal say more."


def _amount(load: LoadProgress) -> str:
    if load.stage == "fetching" and load.total:
        return f"{load.done / 1e6:,.0f} of {load.total / 1e6:,.0f} MB"
    return ""
