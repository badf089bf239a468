"""The memory in two lines, where the map has no room beside the chat: figures, and the used part in letters."""

from __future__ import annotations

from textual.content import Content
from textual.message import Message

from pagechat.app.arrangement import Arrangement
from pagechat.app.cells import Cell
from pagechat.app.panels.overview import totals_parts
from pagechat.app.pool_view import PoolView
from pagechat.app.used_part import UsedPart
from pagechat.app.widgets.line import Line
from pagechat.app.widgets.map_styles import density
from pagechat.app.widgets.tab_bar import owner_color


class MemoryStrip(Line):
    """Posts `Wanted` when clicked: the whole memory is to be shown."""

    class Wanted(Message):
        pass

    def __init__(self, view: PoolView) -> None:
        super().__init__("strip")
        self._view = view
        self._used = UsedPart(view, Arrangement(view))
        self._seen: tuple[int, int] | None = None

    def sync(self) -> None:
        width = self.size.width
        if not width or (self._view.version, width) == self._seen:
            return
        self._seen = (self._view.version, width)
        totals = self._view.totals()
        if totals is None:
            self.show(Content.styled("no engine", "$muted"))
            return
        figures = Content("memory ")
        for part in totals_parts(totals, self._view.hit_rate):
            longer = Content.assemble(figures, " " if figures.plain == "memory " else "  ", part)
            if longer.cell_length > width:
                break
            figures = longer
        self._used.grown(None)
        self.show(Content.assemble(figures, "\n", strip_of(self._view, self._used.end, width)))

    def on_click(self) -> None:
        self.post_message(self.Wanted())


def strip_of(view: PoolView, used: int, width: int) -> Content:
    """The first `used` blocks in one line: a letter each where there is room, else each cell the look of several; then
    how many more there are."""
    if not used:
        return Content.styled(f"all {view.num_blocks:,} blocks are free", "$muted")
    rest = view.num_blocks - used
    words = f" {rest:,} more free" if rest else ""
    room = max(1, width - len(words))
    group = max(1, -(-used // room))
    cells = [_cell(view, first, min(first + group, used + 1)) for first in range(1, used + 1, group)]
    return Content.assemble(*cells, (words, "$muted"))


def _cell(view: PoolView, first: int, end: int) -> tuple[str, str]:
    if end - first > 1:
        found = density(view.group(first, end))
        return found.glyph, f"${found.color}"
    return _glyph(view.cell(first))


def _glyph(cell: Cell) -> tuple[str, str]:
    if cell.kind in ("free", "cached"):
        return ("·" if cell.kind == "free" else ":"), f"$block-{cell.kind}"
    shared = cell.kind == "shared"
    return (cell.letter, "bold $block-shared") if shared else (cell.letter.lower(), f"bold {owner_color(cell.letter)}")
