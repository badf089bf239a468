"""The row of chat tabs: letter, title and state of each, the active one marked. One line, one widget."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from pagechat.app.conversation import TabState
from pagechat.app.titles import short

STATE_GLYPHS: dict[TabState, str] = {"idle": " ", "thinking": "◌", "streaming": "●", "unread": "◆", "error": "!"}
MAX_TITLE = 22


@dataclass(frozen=True, slots=True)
class Tab:
    letter: str
    title: str
    """Safe to display, one line."""
    state: TabState
    rate: int = 0
    """Tokens per second, while it streams."""
    queued: int = 0
    pinned: bool = False
    elsewhere: bool = False
    """Open in another window too."""

    @property
    def text(self) -> str:
        """The title, cut to what a tab has room for."""
        return short(self.title, MAX_TITLE)

    @property
    def tail(self) -> str:
        """State, speed, and what waits: `●23/s +2`. `^` is pinned, `=` open in another window too."""
        rate = f"{self.rate}/s" if self.rate else ""
        queued = f" +{self.queued}" if self.queued else ""
        return f"{'^' if self.pinned else ''}{'=' if self.elsewhere else ''}{STATE_GLYPHS[self.state]}{rate}{queued}"

    @property
    def width(self) -> int:
        return 5 + cell_len(self.text) + len(self.tail)


class TabBar(Widget):
    """Shows `tabs`; a click chooses one, or asks for a new one."""

    class Chosen(Message):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    class NewTab(Message):
        pass

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tabs: list[Tab] = []
        self.active = 0
        self._targets: list[tuple[int, int, int]] = []
        """(first cell, end cell, tab index); index -1 is "new tab"."""

    def show(self, tabs: list[Tab], active: int) -> None:
        if tabs != self.tabs or active != self.active:
            self.tabs, self.active = tabs, active
            self.refresh()

    def render(self) -> Content:
        self._targets = []
        first = self._first_visible([tab.width for tab in self.tabs])
        parts: list[Content] = [Content.styled("‹", "$muted")] if first else [Content(" ")]
        x = 1
        for index, tab in enumerate(self.tabs):
            if index < first:
                continue
            width = tab.width
            if x + width > self.size.width - 3 and index > first:
                parts.append(Content.styled("›", "$muted"))
                break
            self._targets.append((x, x + width, index))
            parts.append(_paint(tab, index == self.active))
            x += width
        else:
            self._targets.append((x, x + 3, -1))
            parts.append(Content.styled(" + ", "$muted"))
        return Content("").join(parts)

    def on_click(self, event: events.Click) -> None:
        for begin, end, index in self._targets:
            if begin <= event.x < end:
                self.post_message(self.Chosen(index) if index >= 0 else self.NewTab())

    def _first_visible(self, widths: list[int]) -> int:
        """The leftmost tab drawn, such that the active one is."""
        first, room = 0, max(1, self.size.width - 4)
        while first < self.active and sum(widths[first : self.active + 1]) > room:
            first += 1
        return first


def _paint(tab: Tab, active: bool) -> Content:
    ground = " on $panel" if active else ""
    title = "bold underline $foreground" if active else "$muted"
    states = {"thinking": "$warning", "streaming": "$success", "unread": "$accent", "error": "bold $error"}
    blank = (" ", f"$foreground{ground}")
    return Content.assemble(
        blank,
        (tab.letter, f"bold {owner_color(tab.letter)}{ground}"),
        blank,
        (tab.text, f"{title}{ground}"),
        blank,
        (tab.tail, f"{states.get(tab.state, title)}{ground}"),
        blank,
    )


def owner_color(letter: str) -> str:
    """The theme variable with the colour of that owner; eight colours, then they repeat."""
    return f"$block-owner-{owner_number(letter)}"


def owner_number(letter: str) -> int:
    """1..8."""
    return (ord(letter) - ord("A")) % 8 + 1 if letter.isalpha() else 8
