"""Help: the keys and commands, and how to read the map."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from pagechat.app.commands import Command
from pagechat.app.commands.all import COMMANDS
from pagechat.app.keymap import clashes, path

KEYS = [
    ("Writing", ""),
    ("enter", "send; while an answer is written, or the engine loads: queue"),
    ("ctrl+j", "new line; shift+enter too, where the terminal sends it"),
    ("/", "a command; tab completes it"),
    ("up, down", "in an empty input: what waits, then what was sent before"),
    ("pgup, pgdn", "scroll the chat; ctrl+end: back to its end"),
    ("alt+1 … alt+9", "go to a tab; ctrl+g and the digit does the same"),
    ("ctrl+g", "then a letter: what else needs a function key or alt, which some terminals keep for themselves"),
    ("ctrl+p", "all commands, by their names"),
    ("ctrl+_", "undo in the input; alt+z undoes what was done to chats"),
    ("ctrl+z", "stop pagechat and go to the shell; fg comes back"),
    ("shift and mouse", "select and copy as the terminal does it"),
    ("ctrl+c twice", "quit"),
]
OWN = 'The names at the ends of the lines are for keys of your own (*), such as "chat.new" = "ctrl+t", in '
MOVES = [
    ("On the map", ""),
    ("arrows, mouse", "pick a block; pgup, pgdn, home, end"),
    ("enter", "select in the chat the text that the block holds; b on a message: mark its blocks"),
    ("+ and -", "zoom: all of the pool, two blocks a cell, letters, letters with fill"),
    ("0", "all of the pool, or again the part with content as large as it fits"),
]

MAP = [
    ("a b c", "a block of chat A, B, C, ...: the letter in its tab"),
    ("A B C", "a block with several owners: the same KV serves them all"),
    ("▁ ▃ ▅ ▇", "the last block of a chat, filling up with tokens"),
    (":", "cached: no owner, content kept until somebody needs the block"),
    ("·", "free; many of them behind the last block with content are only counted"),
    ("by owner, by age", "in the legend: another order (o); in front of a line then its first owner, or age"),
    ("+", "just copied: a shared block was about to be written"),
    ("used", "blocks with an owner; saved: table entries that sharing spares"),
    ("waste", "slots of used blocks that hold no token yet"),
    ("hit", "share of prompt tokens found in the cache"),
]

PLACES = {
    "messages": " (messages)",
    "map": " (map)",
    "map itself": " (map)",
    "anywhere": "",
}


class HelpScreen(ModalScreen[None]):
    """Closes with any of its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,question_mark,enter", "dismiss", "Close")]

    def __init__(self, own_keys: Mapping[str, str]) -> None:
        """`own_keys`: the person's, by command."""
        super().__init__()
        self._own = own_keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help"):
            yield Static(_table(KEYS), markup=False)
            yield Static(_commands(COMMANDS, self._own), markup=False)
            for problem in clashes(COMMANDS, self._own):
                yield Static(Content.styled(f"! {problem}", "bold $warning"), markup=False)
            yield Static(Content.assemble("\n", OWN, (str(path()), "$accent")), markup=False)
            yield Static(Content.assemble("\n", _table(MOVES)), markup=False)
            yield Static(Content.assemble("\n", ("Reading the map", "bold"), "\n", _table(MAP)), markup=False)


def _commands(commands: tuple[Command, ...], own: Mapping[str, str]) -> Content:
    """All commands by group: keys, slash command, what it does, its name in the keymap file."""
    lines: list[Content] = []
    for group, members in itertools.groupby(commands, key=lambda command: command.group):
        lines.append(Content.styled(f"\n{group}", "bold"))
        for command in members:
            slash = f"/{command.slash}" if command.slash else ""
            changed = "*" if command.id in own else " "
            lines.append(
                Content.assemble(
                    (f" {changed}{command.shown_keys(own):<16} ", "$accent"),
                    (f"{slash:<11} ", "$secondary"),
                    f"{command.title}: ",
                    (f"{command.help}{PLACES[command.place]}  ", "$muted"),
                    (command.id, "$muted italic"),
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
