"""What the next letter does, after ctrl+g."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from pagechat.app.commands import Command, pretty

COLUMN = 28
"""Cells."""


class LeaderScreen(ModalScreen[str | None]):
    """Answers the command, the number of a tab, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+g", "dismiss(None)", "Back")]

    def __init__(self, letters: Mapping[str, Command], tabs: int) -> None:
        super().__init__()
        self._letters, self._tabs = letters, min(9, tabs)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content.styled("One more key", "bold"), markup=False)
            yield Static(self._table(), classes="letters", markup=False)

    def _table(self) -> Content:
        rows = [(pretty(key), command.title) for key, command in self._letters.items()]
        if self._tabs:
            rows.append((f"1-{self._tabs}" if self._tabs > 1 else "1", "Tab by its number"))
        rows.append(("esc", "None of these"))
        half = -(-len(rows) // 2)
        cells = [
            Content.assemble((f"{key:>4}  ", "bold $accent"), title).truncate(COLUMN, pad=True) for key, title in rows
        ]
        lines = [Content("  ").join(cells[row::half]) for row in range(half)]
        return Content("\n").join(lines)

    def on_key(self, event: events.Key) -> None:
        if event.key in self._letters:
            event.stop()
            self.dismiss(self._letters[event.key].id)
        elif event.key.isdigit() and 1 <= int(event.key) <= self._tabs:
            event.stop()
            self.dismiss(event.key)
