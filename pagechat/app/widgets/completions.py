"""Slash commands that begin like what is typed, above the input."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from pagechat.app.commands import Command

MOST = 8


class Completions(OptionList, can_focus=False):
    """Shown while the input holds the beginning of a slash command; the input keeps the focus."""

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False, compact=True)
        self._commands: list[Command] = []
        self.display = False

    def offer(self, commands: list[Command]) -> None:
        if commands == self._commands:
            return
        self._commands = commands
        self.display = bool(commands)
        self.clear_options()
        self.add_options([Option(_line(command)) for command in commands])
        self.highlighted = 0 if commands else None

    def step(self, by: int) -> None:
        if self._commands:
            self.highlighted = ((self.highlighted or 0) + by) % len(self._commands)

    @property
    def chosen(self) -> Command | None:
        at = self.highlighted
        return self._commands[at] if self.display and at is not None and at < len(self._commands) else None


def _line(command: Command) -> Content:
    typed = f"/{command.slash} {command.argument}".rstrip()
    return Content.assemble((f"{typed:<30} ", "$accent"), command.help)
