"""The live map of the block pool: one widget, drawn by lines, redrawn only where blocks changed.

```
zoom 0   ▀ two blocks a cell, colour only: the whole of a large pool at a glance
zoom 1   a one cell a block: letter of the owner, UPPER CASE when shared, ▃ the block being filled
zoom 2   a▃ two cells a block: letter and fill
```
"""

from __future__ import annotations

from typing import ClassVar

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pagechat.app.pool_view import Cell, PoolView
from pagechat.app.widgets.tab_bar import owner_number

FILLS = " ▁▂▃▄▅▆▇█"
OVERVIEW_SCREENS = 8
"""A pool that needs more screens than this at one cell a block starts as an overview."""

StyleKey = tuple[str, str, bool]


class BlockMap(ScrollView, can_focus=True):
    """Draws a `PoolView`; `sync` redraws what changed. The cursor is on one block."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", show=False),
        Binding("right", "move(1, 0)", show=False),
        Binding("up", "move(0, -1)", show=False),
        Binding("down", "move(0, 1)", show=False),
        Binding("pageup", "move(0, -10)", show=False),
        Binding("pagedown", "move(0, 10)", show=False),
        Binding("home", "jump(1)", show=False),
        Binding("end", "jump(-1)", show=False),
        Binding("plus,equals_sign,+,=", "zoom(1)", "Zoom", key_display="+/-"),
        Binding("minus,-", "zoom(-1)", "Zoom out", show=False),
    ]

    class Selected(Message):
        """The cursor is on another block."""

    def __init__(self, view: PoolView, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view
        self.zoom: int | None = None
        """0, 1 or 2; None until the size of the pool and of the widget are known."""
        self.selected: int | None = None
        self._strips: dict[int, Strip] = {}
        self._styles: dict[StyleKey, Style] = {}
        self._blocks = 0

    # -- geometry ------------------------------------------------------------------------------

    @property
    def _room(self) -> Size:
        """Cells to draw in, scrollbar left out."""
        return self.scrollable_content_region.size

    @property
    def _label_width(self) -> int:
        width = len(str(self.view.num_blocks)) + 1
        return width if self._room.width >= width + 16 else 0

    @property
    def per_row(self) -> int:
        """Blocks in one row of the grid: a multiple of eight, where there is room."""
        cells = (self._room.width - self._label_width) // (2 if self.zoom == 2 else 1)
        return max(1, cells // 8 * 8 if cells >= 8 else cells)

    @property
    def _rows_per_line(self) -> int:
        return 2 if self.zoom == 0 else 1

    def line_of(self, block: int) -> int:
        """The line of the map that shows `block`."""
        return (block - 1) // (self.per_row * self._rows_per_line)

    def block_at(self, x: int, y: int) -> int | None:
        """The block shown at cell x of line y."""
        column = (x - self._label_width) // (2 if self.zoom == 2 else 1)
        block = y * self._rows_per_line * self.per_row + column + 1
        return block if 0 <= column < self.per_row and 1 <= block <= self.view.num_blocks else None

    def best_zoom(self) -> int:
        """The largest zoom that shows the pool on one screen; letters on a few screens before colour on one."""
        width, height = max(1, self._room.width - self._label_width), max(1, self._room.height)
        blocks = self.view.num_blocks
        if width // 2 // 8 * 8 * height >= blocks:
            return 2
        return 1 if self.app.no_color or width * height * OVERVIEW_SCREENS >= blocks else 0

    # -- drawing -------------------------------------------------------------------------------

    def sync(self) -> None:
        """Redraw the lines of the blocks that changed; nothing when none did."""
        if self.view.num_blocks != self._blocks:
            self._blocks = self.view.num_blocks
            self.selected = None
            self._lay_out()
        dirty = self.view.take_dirty()
        if dirty is None:
            self._redraw()
            return
        lines = {self.line_of(block) for block in dirty}
        for line in lines:
            self._strips.pop(line, None)
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        visible = sorted(line for line in lines if top <= line < bottom)
        if visible:
            self.refresh(*(Region(0, line - top, self.size.width, 1) for line in visible))

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        strip = self._strips.get(line)
        if strip is None:
            strip = self._strips[line] = self._draw(line)
        return strip

    def _draw(self, line: int) -> Strip:
        width, per_row = self.size.width, self.per_row
        first = line * per_row * self._rows_per_line + 1
        if first > self.view.num_blocks:
            return Strip.blank(width, self.rich_style)
        parts: list[tuple[str, Style]] = []
        if self._label_width:
            parts.append((f"{first:>{self._label_width - 1}} ", self._style("label")))
        end = min(first + per_row - 1, self.view.num_blocks)
        for block in range(first, end + 1):
            parts.extend([self._half_blocks(block)] if self.zoom == 0 else self._glyphs(block))
        segments: list[Segment] = []
        run, run_style = "", parts[0][1]
        for text, style in parts:
            if style is run_style:
                run += text
            else:
                segments.append(Segment(run, run_style))
                run, run_style = text, style
        segments.append(Segment(run, run_style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _glyphs(self, block: int) -> list[tuple[str, Style]]:
        cell = self.view.cell(block)
        cursor = block == self.selected
        style = self._style(_look(cell), cell.letter, cursor)
        owned = cell.kind in ("active", "shared", "filling")
        if cell.flash == "copy":
            glyph = "+"
        elif cell.kind == "filling" and self.zoom == 1:
            glyph = FILLS[cell.fill]
        elif owned:
            glyph = cell.letter if cell.kind == "shared" else cell.letter.lower()
        else:
            glyph = ":" if cell.kind == "cached" else "·"
        if self.zoom == 1:
            return [(glyph, style)]
        if owned:
            return [(glyph, style), (FILLS[cell.fill], self._style(f"{_look(cell)} fill", cell.letter, cursor))]
        return [(glyph + " ", style)]

    def _half_blocks(self, upper: int) -> tuple[str, Style]:
        lower = upper + self.per_row
        cells = [self.view.cell(block) if block <= self.view.num_blocks else None for block in (upper, lower)]
        cursor = self.selected in (upper, lower)
        top, bottom = (self._overview_color(cell) for cell in cells)
        used = [cell is not None and cell.kind not in ("free", "cached") for cell in cells]
        if self.app.no_color:
            glyph = "▀" if used == [True, False] else "▄" if used == [False, True] else "█" if all(used) else "·"
            return glyph, self._style("half", "", cursor)
        if top == bottom and not any(used):
            return ("·" if cells[0] is not None and cells[0].kind == "free" else ":"), self._style(
                f"half {top}", "", cursor
            )
        return "▀", self._style(f"half {top} {bottom}", "", cursor)

    def _overview_color(self, cell: Cell | None) -> str:
        if cell is None:
            return "ground"
        if cell.flash == "copy":
            return "block-cow"
        if cell.kind in ("free", "cached", "shared"):
            return f"block-{cell.kind}"
        return f"block-owner-{owner_number(cell.letter)}"

    def _style(self, look: str, letter: str = "", cursor: bool = False) -> Style:
        key = (look, letter, cursor)
        style = self._styles.get(key)
        if style is None:
            style = self._styles[key] = self._make_style(look, letter, cursor)
        return style

    def _make_style(self, look: str, letter: str, cursor: bool) -> Style:
        ground = self.background_colors[1]

        def variable(name: str) -> Color:
            return ground if name == "ground" else Color.parse(self.app.theme_variables[name])

        owner = variable(f"block-owner-{owner_number(letter)}") if letter else variable("block-cached")
        bold = False
        fore, back = owner, ground
        look, _, second = look.partition(" ")
        name, _, flash = look.partition("!")
        if name in ("label", "free"):
            fore = variable("block-free")
        elif name == "shared":
            fore, back, bold = ground, variable("block-shared"), True
        elif name == "active":
            fore, back = owner.get_contrast_text(1.0), owner
        elif name == "filling":
            back = variable("panel")
        elif name == "half":
            colors = [variable(color) for color in second.split()] or [variable("foreground")]
            fore, back = colors[0], colors[1] if len(colors) > 1 else ground
        if flash:
            bold = True
            if flash == "copy":
                fore, back = variable("block-cow").get_contrast_text(1.0), variable("block-cow")
            elif name == "filling":
                back = variable("block-free")
            elif name == "active":
                back = owner.blend(variable("foreground"), 0.45)
                fore = back.get_contrast_text(1.0)
            elif name == "shared":
                back = variable("block-shared").blend(owner, 0.5)
        if second == "fill" and name != "filling":
            fore = back  # full: one solid tile in colour, a full glyph without
        if cursor:
            fore, back, bold = ground, variable("accent"), True
        return Style(
            color=_rich(fore), bgcolor=_rich(back), bold=bold, underline=cursor, reverse=cursor and self.app.no_color
        )

    def _redraw(self) -> None:
        self._strips.clear()
        self.refresh()

    def _lay_out(self) -> None:
        """The pool or the widget has another size."""
        if self.zoom is None and self.view.num_blocks and self.size.height:
            self.zoom = self.best_zoom()
        rows = -(-self.view.num_blocks // self.per_row)
        self.virtual_size = Size(0, -(-rows // self._rows_per_line))
        self._redraw()

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()

    # -- the cursor ----------------------------------------------------------------------------

    def select(self, block: int) -> None:
        """Put the cursor on `block` and bring it into view."""
        block = max(1, min(block, self.view.num_blocks))
        if not self.view.num_blocks or block == self.selected:
            return
        for changed in {block, self.selected or block}:
            self._strips.pop(self.line_of(changed), None)
        self.selected = block
        self.refresh()
        line = self.line_of(block)
        if line < self.scroll_offset.y:
            self.scroll_to(y=line, animate=False)
        elif line >= self.scroll_offset.y + self.size.height:
            self.scroll_to(y=line - self.size.height + 1, animate=False)
        self.post_message(self.Selected())

    def action_move(self, columns: int, rows: int) -> None:
        if self.selected is None:
            self.select(1)
        else:
            target = self.selected + columns + rows * self.per_row
            if 1 <= target <= self.view.num_blocks:
                self.select(target)

    def action_jump(self, block: int) -> None:
        self.select(block if block > 0 else self.view.num_blocks)

    def action_zoom(self, step: int) -> None:
        zoom = max(0, min(2, (1 if self.zoom is None else self.zoom) + step))
        if zoom != self.zoom:
            self.zoom = zoom
            self._lay_out()

    def on_click(self, event: events.Click) -> None:
        block = self.block_at(event.x, event.y + self.scroll_offset.y)
        if block is not None:
            self.select(block)


def _look(cell: Cell) -> str:
    return f"{cell.kind}!{cell.flash}" if cell.flash else cell.kind


def _rich(color: Color) -> RichColor:
    return RichColor.from_rgb(color.r, color.g, color.b)
