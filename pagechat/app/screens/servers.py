"""Which model answers, and which daemon serves it. To take another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from pagechat.protocol import Status
from pagechat.text_safety import sanitize


class ServersScreen(ModalScreen[str | None]):
    """Answers the name of a model, or the run directory of a daemon; None to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back"),
        Binding("down", "step(1)", show=False),
        Binding("up", "step(-1)", show=False),
    ]

    def __init__(self, status: Status | None, run_dir: Path, models: Sequence[str], daemons: Sequence[Path]) -> None:
        super().__init__()
        self._status, self._run_dir = status, run_dir
        self._choices = [(name, "model") for name in models]
        self._choices += [(str(place), "daemon") for place in daemons if place != run_dir]
        self._listed: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog list"):
            yield Static(Content.styled("Model and server", "bold"), markup=False)
            yield Static(told(self._status, self._run_dir), markup=False)
            hint = "a model's name, its folder or .gguf file; or a daemon's run directory"
            yield Input(placeholder=hint, compact=True)
            yield OptionList(markup=False, compact=True)
            note = "enter changes to it; chats keep their text, their blocks are computed again · esc stays"
            yield Static(Content.styled(note, "$muted"), classes="detail", markup=False)

    def on_mount(self) -> None:
        self._list()

    def on_input_changed(self) -> None:
        self._list()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        at = self.query_one(OptionList).highlighted
        chosen = self._listed[at] if at is not None and at < len(self._listed) else event.value.strip()
        if chosen:
            self.dismiss(chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._listed[event.option_index])

    def action_step(self, step: int) -> None:
        if self._listed:
            listing = self.query_one(OptionList)
            listing.highlighted = ((-1 if listing.highlighted is None else listing.highlighted) + step) % len(
                self._listed
            )

    def _list(self) -> None:
        """What begins or goes on like what is typed; a name that is none of these is taken as it stands."""
        typed = self.query_one(Input).value.strip()
        fitting = [(name, kind) for name, kind in self._choices if typed.casefold() in name.casefold()]
        self._listed = [name for name, _ in fitting]
        listing = self.query_one(OptionList)
        listing.clear_options()
        listing.add_options([Option(self._line(name, kind)) for name, kind in fitting])
        exact = typed in self._listed or not typed
        listing.highlighted = 0 if fitting and exact else None

    def _line(self, name: str, kind: str) -> Content:
        model = self._status.model if self._status else None
        mark = "●" if model is not None and kind == "model" and model.name == name else "·"
        return Content.assemble(f"{mark} ", f"{kind:<8}", sanitize(name)[-100:])


def told(status: Status | None, run_dir: Path) -> Content:
    """What is served now, and where."""
    model = status.model if status else None
    if status is None or model is None:
        return Content.styled(f"No engine is ready · {run_dir}", "$muted")
    runs = f"{model.numbers} on {model.device} · context {model.max_context:,}"
    first = f"{sanitize(model.name)[-60:]} · {model.parameters / 1e6:,.0f} M parameters · {runs}"
    http = status.http or "no HTTP"
    return Content.assemble(first, (f"\nprocess {status.pid} in {sanitize(str(run_dir))} · {http}", "$muted"))
