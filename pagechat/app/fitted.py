"""What every app of ours does for the terminal it runs on: our themes, fewer colours or none, ASCII, nothing it
would obey, one that goes away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import LineFilter
from textual.theme import Theme

from pagechat.app import plain
from pagechat.app.harmless import Harmless
from pagechat.app.plain import AsciiGlyphs
from pagechat.app.terminal import FEW_COLORS_THEME, without_colors
from pagechat.app.terminal_driver import TerminalDriver, driver_for
from pagechat.themes import DEFAULT_THEME, our_variables


class FittedApp(App[None]):
    """Wears one of our themes from the start; `choose_theme` is for when the terminal is known."""

    TITLE = "pagechat"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "suspend_process", "Stop", show=False, priority=True)]
    CSS_PATH: ClassVar = [Path("app.tcss"), Path("screens/main.tcss")]  # at once: a screen's own is read a second time

    def __init__(self, themes: Iterable[Theme]) -> None:
        super().__init__()
        self._own_filters = [*([AsciiGlyphs()] if plain.wanted() else []), Harmless()]
        self.take_themes(themes)
        self.theme = DEFAULT_THEME

    def take_themes(self, themes: Iterable[Theme]) -> None:
        """These can be worn, in place of those of the same names."""
        for theme in themes:
            self.register_theme(theme)

    def choose_theme(self, asked: str | None, remembered: str | None = None) -> None:
        """What was asked for, else one for few colours where the terminal has no more, else what is remembered."""
        few = self.no_color or self.console.color_system == "standard"
        theme = asked or (FEW_COLORS_THEME if few else remembered)
        if theme in self.available_themes:
            self.theme = theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own variables, for Textual's own themes, which have none of them."""
        return our_variables()

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return [*(without_colors(filters) if self.no_color else filters), *self._own_filters]

    def action_suspend_process(self) -> None:
        """ctrl+z: back to the shell, until `fg`."""
        if isinstance(self._driver, TerminalDriver):
            self._suspend_signal()
            self._driver.stop_process(group=True)
            self._resume_signal()

    def get_driver_class(self) -> type[Driver]:
        return driver_for(super().get_driver_class())
