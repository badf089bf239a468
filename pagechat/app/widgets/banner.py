"""What stands between the person and an answer: the engine loads, the daemon has gone, something failed.

It lies above the chat, which can be read, and written to, all the while.
"""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
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
BAR_WIDTH = 30


class Banner(Vertical):
    """Draws `LinkState`s, and nothing while all is well; posts `Retry`."""

    class Retry(Message):
        pass

    def __init__(self) -> None:
        super().__init__(id="banner")
        self._state = LinkState("connecting")
        self._since = time.monotonic()

    def compose(self) -> ComposeResult:
        yield Static(id="stage", markup=False)
        yield Static(id="detail", markup=False)
        with Horizontal(classes="buttons"):
            yield Button("Try again (f5)", id="retry", variant="primary", compact=True)
            yield Button("Quit", id="quit", compact=True)

    def on_mount(self) -> None:
        self.show(self._state)
        self.set_interval(1.0, lambda: self.show(self._state))  # the seconds go on between two reports

    @property
    def shown_text(self) -> str:
        """In words, for whoever cannot see it."""
        if self._state.phase == "ready":
            return "The engine is ready."
        title, detail = _words(self._state, time.monotonic() - self._since)
        return f"{title.plain}. {detail.plain}"

    def show(self, state: LinkState) -> None:
        """Draw this state."""
        if state.phase != self._state.phase:
            self._since = time.monotonic()
        self._state = state
        self.display = state.phase != "ready"
        if not self.is_mounted or not self.display:
            return
        title, detail = _words(state, time.monotonic() - self._since)
        self.query_one("#stage", Static).update(title)
        self.query_one("#detail", Static).update(detail)
        self.query_one(".buttons").display = state.phase == "failed"
        self.set_class(state.phase in ("failed", "lost"), "-bad")

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "quit":
            await self.app.action_quit()  # as ctrl+q does: everything is saved
        else:
            self.post_message(self.Retry())


def _words(state: LinkState, seconds: float) -> tuple[Content, Content]:
    """A title and a line below it."""
    reason = sanitize(state.reason)
    if state.phase == "failed":
        return Content.styled("! The engine did not start", "bold $error"), Content(f"{reason}\n{advice(state)}")
    if state.phase == "lost":
        detail = f"{reason}. Trying again by itself; the chats are kept, and what you send waits."
        return Content.styled("! The daemon is gone", "bold $error"), Content(detail)
    load = state.status.load if state.status else None
    waits = f"{seconds:.0f} s · what you send is answered when it is ready"
    if load is None:
        what = "The engine restarts" if state.phase == "loading" else "Looking for the daemon, or starting one"
        return Content(what), Content.styled(" · ".join(part for part in (reason, waits) if part), "$muted")
    title = Content.assemble(f"{STAGES[load.stage]}  ", progress_bar(load.done, load.total))
    parts = (sanitize(load.detail), _amount(load), waits)
    return title, Content.styled(" · ".join(part for part in parts if part), "$muted")


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
        return "f5 starts a new daemon. Another model: pagechat --model DIRECTORY."
    return "f5 tries again. `pagechat-daemon status` and `pagechat-daemon serve` in another terminal say more."


def _amount(load: LoadProgress) -> str:
    if load.stage == "fetching" and load.total:
        return f"{load.done / 1e6:,.0f} of {load.total / 1e6:,.0f} MB"
    return ""
