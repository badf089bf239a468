"""Help: the keys and commands, and how to read the map."""

from __future__ import annotations

import itertools
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from pagechat.app.commands import Command
from pagechat.app.commands.all import COMMANDS

KEYS = [
    ("Writing", ""),
    ("enter", "send; while an answer is written, or the engine loads: queue"),
    ("ctrl+j", "new line; shift+enter too, where the terminal sends it"),
    ("/", "a command; tab completes it"),
    ("up, down", "in an empty input: what waits, then what was sent before"),
    ("pgup, pgdn", "scroll the chat; ctrl+end: back to its end"),
    ("alt+1 … alt+9", "go to a tab"),
    ("ctrl+p", "all commands, by their names"),
    ("ctrl+c twice", "quit"),
]
MOVES = [
    ("On the map", ""),
    ("arrows, mouse", "pick a block; pgup, pgdn, home, end"),
    ("enter", "select in the chat the text that the block holds; b on a message: mark its blocks"),
    ("+ and -", "zoom: all of the pool, two blocks a cell, letters, letters with fill"),
]

MAP = [
    ("a b c", "a block of chat A, B, C, ...: the letter in its tab"),
    ("A B C", "a block with several owners: the same KV serves them all"),
    ("▁ ▃ ▅ ▇", "the last block of a chat, filling up with tokens"),
    (":", "cached: no owner, content kept until somebody needs the block"),
    ("·", "free"),
    ("by owner, by age", "in the legend: another order (o); in front of a line then its first owner, or age"),
    ("+", "just copied: a shared block was about to be written"),
    ("used", "blocks with an owner; saved: table entries that sharing spares"),
    ("waste", "slots of used blocks that hold no token yet"),
    ("hit", "share of prompt tokens found in the cache"),
]

PLACES = {
    "messages": " (while a message is chosen)",
    "map": " (on the map)",
    "map itself": " (on the map)",
    "anywhere": "",
}


class HelpScreen(ModalScreen[None]):
    """Closes with any of its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help"):
            yield Static(_table(KEYS), markup=False)
            yield Static(_commands(COMMANDS), markup=False)
            yield Static(Content.assemble("\n", _table(MOVES)), markup=False)
            yield Static(Content.assemble("\n", ("Reading the map", "bold"), "\n", _table(MAP)), markup=False)


def _commands(commands: tuple[Command, ...]) -> Content:
    """All commands by group: keys, slash command, what it does."""
    lines: list[Content] = []
    for group, members in itertools.groupby(commands, key=lambda command: command.group):
        lines.append(Content.styled(f"\n{group}", "bold"))
        for command in members:
            slash = f"/{command.slash}" if command.slash else ""
            lines.append(
                Content.assemble(
                    (f"  {command.shown_keys:<16}", "$accent"),
                    (f"{slash:<11}", "$secondary"),
                    f"{command.title}: ",
                    (f"{command.help}{PLACES[command.place]}", "$muted"),
                )
            )
    return Content("\n").join(lines)


def _table(rows: list[tuple[str, str]]) -> Content:
    lines = []
    for key, meaning in rows:
        if meaning:
            lines.append(Content.assemble((f"  {key:<16}", "$accent"), meaning))
        else:
            lines.append(Content.styled(key, "bold"))
    return Content("\n").join(lines)
