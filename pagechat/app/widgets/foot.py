"""The foot of the screen: the keys of the place where the person is."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from pagechat.app.footer import Entry
from pagechat.app.widgets.line import Line


class Foot(Line):
    """A click on a key does what the key does."""

    def __init__(self) -> None:
        super().__init__("foot")
        self.auto_links = False  # the keys have a look of their own

    def tell(self, found: Sequence[tuple[str, Entry]]) -> None:
        parts: list[Content] = []
        for key, entry in found:
            part = Content.assemble((key, "bold $accent"), (f" {entry.word}", "$muted"))
            if entry.command:
                part = part.stylize(Style.from_meta({"@click": f"screen.command('{entry.command}')"}))
            parts.append(part)
        loose = sum(part.cell_length + 2 for part in parts) <= self.size.width
        self.show(Content("  " if loose else " ").join(parts))
