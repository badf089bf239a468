"""The names of the panels, the shown one marked; a click chooses one."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from pagechat.app.drawing import Shielded


class PanelBar(Shielded, Widget):
    class Chosen(Message):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, names: list[str]) -> None:
        super().__init__(id="panels")
        self._names = names
        self.active = names[0]
        self._targets: list[tuple[int, int, str]] = []

    def show(self, name: str) -> None:
        self.active = name
        self.refresh()

    def render(self) -> Content:
        parts: list[Content] = []
        self._targets, x = [], 0
        short = sum(len(name) + 4 for name in self._names) > self.size.width
        for number, name in enumerate(self._names, start=1):
            shown = name == self.active
            label = f"{number}" if short and not shown else f"{number} {name}"
            self._targets.append((x, x + len(label) + 2, name))
            x += len(label) + 2
            style = "bold underline $foreground" if shown else "$muted"
            parts.append(Content.assemble((label, style), "  "))
        return Content("").join(parts)

    def on_click(self, event: events.Click) -> None:
        for begin, end, name in self._targets:
            if begin <= event.x < end:
                self.post_message(self.Chosen(name))
