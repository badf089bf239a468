"""Help: the keys, and how to read the map."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = [
    ("Chat", ""),
    ("enter", "send"),
    ("ctrl+j", "new line; shift+enter too, where the terminal sends it"),
    ("esc", "stop the answer; its text is kept"),
    ("up, down", "in an empty input: what was sent before"),
    ("pgup, pgdn", "scroll the chat; ctrl+end: back to its end"),
    ("Tabs", ""),
    ("ctrl+n", "new chat"),
    ("alt+1 … alt+9", "go to a tab"),
    ("ctrl+pgup/pgdn", "go to the tab before, after"),
    ("f2", "rename"),
    ("alt+w", "close; the chat stays in the history"),
    ("ctrl+o", "all chats: open or delete one"),
    ("Memory", ""),
    ("f3", "to the map and back"),
    ("arrows, mouse", "pick a block; pgup, pgdn, home, end"),
    ("[ and ]", "the block before, after, of this chat"),
    ("+ and -", "zoom: overview, letters, letters with fill"),
    ("Anywhere", ""),
    ("ctrl+p", "all commands, the theme among them"),
    ("f1", "this help (? too, on the map)"),
    ("ctrl+q", "quit (ctrl+c twice too)"),
]

MAP = [
    ("a b c", "a block of chat A, B, C, ...: the letter in its tab"),
    ("A B C", "a block with several owners: the same KV serves them all"),
    ("▁ ▃ ▅ ▇", "the last block of a chat, filling up with tokens"),
    (":", "cached: no owner, content kept until somebody needs the block"),
    ("·", "free"),
    ("+", "just copied: a shared block was about to be written"),
    ("used", "blocks with an owner; saved: table entries that sharing spares"),
    ("waste", "slots of used blocks that hold no token yet"),
    ("hit", "share of prompt tokens found in the cache"),
    ("contiguous", "requests that fit, if each reserves its longest length"),
    ("paged", "requests that fit, at the size of those held now"),
]


class HelpScreen(ModalScreen[None]):
    """Closes with any of its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help"):
            yield Static(_table(KEYS), markup=False)
            yield Static(Content.assemble("\n", ("Reading the map", "bold"), "\n", _table(MAP)), markup=False)


def _table(rows: list[tuple[str, str]]) -> Content:
    lines = []
    for key, meaning in rows:
        if meaning:
            lines.append(Content.assemble((f"  {key:<15}", "$accent"), meaning))
        else:
            lines.append(Content.styled(f"{key}" if not lines else f"\n{key}", "bold"))
    return Content("\n").join(lines)
