"""The presets: system prompts and sampling parameters under names. To take one for a chat, to save or delete one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from pagechat.app.chat_settings import PRESETS, ChatSettings
from pagechat.text_safety import sanitize


@dataclass(frozen=True, slots=True)
class Wish:
    what: Literal["apply", "save", "delete"]
    name: str = ""


class PresetsScreen(ModalScreen[Wish | None]):
    """Answers what the person wants."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back"),
        Binding("s", "save", "Save this chat's settings"),
        Binding("d,delete", "delete", "Delete"),
    ]

    def __init__(self, presets: dict[str, ChatSettings], now: ChatSettings) -> None:
        super().__init__()
        self._presets, self._now = presets, now
        self._names = list(presets)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog list"):
            yield Static(Content.styled("Presets", "bold"), markup=False)
            now = self._now.summary or "the model's own"
            yield Static(Content.assemble(("this chat: ", "$muted"), sanitize(now)), markup=False)
            lines = [Option(self._line(name, settings)) for name, settings in self._presets.items()]
            yield OptionList(*lines, markup=False, compact=True)
            keys = "enter takes it · s saves this chat's settings · d deletes one of yours · esc closes"
            yield Static(Content.styled(keys, "$muted"), classes="detail", markup=False)

    def on_mount(self) -> None:
        listing = self.query_one(OptionList)
        listing.focus()
        worn = [number for number, settings in enumerate(self._presets.values()) if settings == self._now]
        listing.highlighted = worn[-1] if worn else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(Wish("apply", self._names[event.option_index]))

    def action_save(self) -> None:
        self.dismiss(Wish("save"))

    def action_delete(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(Wish("delete", self._names[at]))

    def _line(self, name: str, settings: ChatSettings) -> Content:
        mark = "●" if settings == self._now else "·"
        kind = "built in" if name in PRESETS else "yours"
        told = [settings.summary.removeprefix("system prompt").removeprefix(" · ")]
        told.append(f"“{' '.join(settings.system.split())}”" if settings.system else "")
        what = " · ".join(filter(None, told)) or "the model's own"
        return Content.assemble(f"{mark} {sanitize(name):<22.40} ", f"{kind:<9} ", sanitize(what)[:200])
