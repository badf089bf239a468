"""The settings of one chat: system prompt, how to sample, and presets that fill them in."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static, TextArea

from pagechat.app.chat_settings import PARAMETERS, PRESETS, ChatSettings
from pagechat.text_safety import sanitize

HINTS = {
    "temperature": "0: always the likeliest · 2: wild",
    "top_p": "share of likelihood to choose from, up to 1",
    "top_k": "choose among so many tokens; 0: all",
    "seed": "the same seed gives the same answer",
    "max_tokens": "most tokens of an answer",
}


class SettingsScreen(ModalScreen[ChatSettings | None]):
    """Answers the new settings, or None when nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("ctrl+s", "accept", "Accept", priority=True),
    ]

    def __init__(self, settings: ChatSettings) -> None:
        super().__init__()
        self._settings = settings

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog settings", can_focus=False):
            yield Static(Content.styled("Settings of this chat", "bold"), markup=False)
            with Horizontal(classes="presets"):
                for name in PRESETS:
                    yield Button(Content(name), id=f"preset-{name}", compact=True)
            yield Static(Content.styled("system prompt", "$muted"), classes="label", markup=False)
            yield TextArea(self._settings.system, id="system", tab_behavior="focus", compact=True)
            for name in PARAMETERS:
                with Horizontal(classes="parameter"):
                    yield Static(Content(name.replace("_", "-")), classes="name", markup=False)
                    yield Input(self._text(name), placeholder="model's own", id=name, compact=True)
                    yield Static(Content.styled(HINTS[name], "$muted"), classes="hint", markup=False)
            yield Static(classes="problem", markup=False)
            yield Static(
                Content.styled(
                    "enter or ctrl+s accepts, from the next answer on · esc cancels · F9: presets of your own", "$muted"
                ),
                classes="detail",
                markup=False,
            )

    def on_mount(self) -> None:
        self.query_one("#temperature", Input).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        preset = PRESETS[(event.button.id or "").removeprefix("preset-")]
        # A preset without a system prompt says nothing about the one that is there.
        if preset.system:
            self.query_one("#system", TextArea).text = preset.system
        self._settings = preset
        for name in PARAMETERS:
            self.query_one(f"#{name}", Input).value = self._text(name)

    def on_input_submitted(self) -> None:
        self.action_accept()

    def action_accept(self) -> None:
        settings = ChatSettings(system=self.query_one("#system", TextArea).text.strip())
        try:
            for name in PARAMETERS:
                settings = settings.changed(name, self.query_one(f"#{name}", Input).value)
        except ValueError as error:
            self.query_one(".problem", Static).update(Content(sanitize(str(error))))
            return
        self.dismiss(settings)

    def _text(self, name: str) -> str:
        value = getattr(self._settings, name)
        return "" if value is None else f"{value}"
