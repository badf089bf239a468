"""The live map of the block pool: one widget, drawn by lines, redrawn only where blocks changed.

A line shows places (`map_grid.py`); which block stands at a place is a matter of the arrangement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pagechat.app.arrangement import ORDERS, Arrangement, Order
from pagechat.app.commands.all import COMMANDS
from pagechat.app.drawing import Shielded
from pagechat.app.pool_view import PoolView
from pagechat.app.used_part import UsedPart
from pagechat.app.widgets.map_grid import DENSITY, LETTERS, LETTERS_AND_FILL, OVERVIEW, Grid, fitting
from pagechat.app.widgets.map_styles import FILLS, MapStyles, Over, density, look, overview_color

LINES_A_FRAME = 8
FLASH_GLYPHS = {"copy": "+", "evict": "x", "preempt": "!"}


class BlockMap(Shielded, ScrollView, can_focus=True):
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
        Binding("s", "next_shared", show=False, id="memory.next_shared"),
        Binding("f", "largest_hole", show=False, id="memory.largest_hole"),
        Binding("o", "order", show=False, id="memory.order"),
        Binding("u", "mark_none", show=False, id="memory.unmark"),
        Binding("plus,equals_sign", "zoom(1)", show=False, id="memory.zoom_in"),
        Binding("minus", "zoom(-1)", show=False, id="memory.zoom_out"),
        Binding("0", "whole", show=False, id="memory.whole"),
        *(binding for command in COMMANDS if command.place == "map" for binding in command.bindings("screen.")),
    ]

    class Selected(Message):
        """The cursor is on another block."""

    class Rearranged(Message):
        """The blocks stand in another order, or look otherwise."""

    def __init__(self, view: PoolView, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view
        self.arrangement = Arrangement(view)
        self.marked: frozenset[int] = frozenset()
        """Blocks that somebody asked to be shown."""
        self.zoom: int | None = None
        """-1 to 2; None until the size of the pool and of the widget are known."""
        self.whole = False
        """All of the pool is shown, also the free rest behind the last block with content."""
        self._zoomed = False
        """The zoom is the person's choice."""
        self._extent = UsedPart(view, self.arrangement)
        self.selected: int | None = None
        self._strips: dict[int, Strip] = {}
        self._densities: dict[int, tuple[str, Style]] = {}
        """Drawn cells of the density zoom, by their first blocks."""
        self._styles = MapStyles(self)
        self._blocks = 0
        self._late: set[int] = set()
        """Lines that look different and are still to be drawn."""
        self.grid = Grid()

    # -- geometry ------------------------------------------------------------------------------

    @property
    def _room(self) -> Size:
        """Cells to draw in, scrollbar left out."""
        return self.scrollable_content_region.size

    def line_of(self, block: int) -> int:
        """The line of the map that shows `block`."""
        return self.grid.line_of(self.arrangement.place(block))

    def block_at(self, x: int, y: int) -> int | None:
        """The block shown at cell x of line y."""
        place = self.grid.place_at(x, y)
        return None if place is None else self.arrangement.block(place)

    # -- drawing -------------------------------------------------------------------------------

    def sync(self) -> None:
        """Redraw the lines of the blocks that changed; nothing when none did."""
        if self.view.num_blocks != self._blocks:
            self._blocks = self.view.num_blocks
            self._extent.forget()
            self.selected = None
            self.marked = frozenset()
            self.arrangement.refresh()
            self._lay_out()
        dirty = self.view.take_dirty()
        rearranged = self.arrangement.refresh() or dirty is None
        if self._extent.grown(dirty) and self._fit():
            return
        if rearranged or dirty is None:
            self._redraw()
            return
        lines = self._late | self._changed_lines(dirty)
        for line in lines:
            self._strips.pop(line, None)
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        visible = sorted(line for line in lines if top <= line < bottom)
        # Drawing a line of a full map takes milliseconds: those that waited longest go first, the others next time.
        first, self._late = _turn(visible, self._late, LINES_A_FRAME)
        if first:
            self.refresh(*(Region(0, line - top, self.size.width, 1) for line in first))

    def _changed_lines(self, dirty: set[int]) -> set[int]:
        """Lines that look different. At the density zoom most changes of a block change nothing in its cell."""
        if self.zoom != DENSITY:
            return {self.line_of(block) for block in dirty}
        lines = set()
        for first in {self._group_at(block) for block in dirty}:
            before = self._densities.pop(first, None)
            if before != self._density(first):
                lines.add(self.grid.line_of(first))
        return lines

    def _group_at(self, block: int) -> int:
        """The first place of the cell that shows `block` at the density zoom."""
        return self.grid.first_of_cell(self.arrangement.place(block))

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        strip = self._strips.get(line)
        if strip is None:
            strip = self._strips[line] = self._draw(line)
        return strip

    def _draw(self, line: int) -> Strip:
        width, grid = self.size.width, self.grid
        first = grid.first_of_line(line)
        if line == grid.lines and self.rest:
            words = f"{' ' * grid.label_width}· and {self.rest:,} more, all free (0 shows them)"
            return Strip([Segment(words, self._paint("label"))]).adjust_cell_length(width, self.rich_style)
        if first > grid.places:
            return Strip.blank(width, self.rich_style)
        parts: list[tuple[str, Style]] = []
        if grid.label_width:
            parts.append((f"{self._label(first):>{grid.label_width - 1}} ", self._paint("label")))
        parts += self._cells(first, min(first + grid.per_row * grid.group - 1, grid.places))
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

    def _label(self, place: int) -> str:
        """In front of the line that begins there: the block's number, its owner, or its age."""
        block, order = self.arrangement.block(place), self.arrangement.order
        if order == "id":
            return str(block)
        if order == "owner":
            return self.view.cell(block).letter
        age = self.view.age(block)
        return brief(age[0])[: self.grid.label_width - 1] if age else ""

    def _cells(self, first: int, end: int) -> list[tuple[str, Style]]:
        """The cells of a line whose upper row is the places `first..end`."""
        if self.zoom == DENSITY:
            return [self._density(place) for place in range(first, end + 1, self.grid.group)]
        if self.zoom == OVERVIEW:
            return [self._half_blocks(place) for place in range(first, end + 1)]
        block = self.arrangement.block
        return [cell for place in range(first, end + 1) for cell in self._glyphs(block(place))]

    def _over(self, *blocks: int) -> Over:
        """What lies over the look of these blocks, which share a cell."""
        if self.selected in blocks:
            return "cursor"
        if not self.marked:
            return ""
        return "aside" if self.marked.isdisjoint(blocks) else "mark"

    def _glyphs(self, block: int) -> list[tuple[str, Style]]:
        cell = self.view.cell(block)
        over = self._over(block)
        style = self._paint(look(cell), cell.letter, over)
        owned = cell.kind in ("active", "shared", "filling")
        if cell.flash in FLASH_GLYPHS:
            glyph = FLASH_GLYPHS[cell.flash]
        elif cell.kind == "filling" and self.zoom == LETTERS:
            glyph = FILLS[cell.fill]
        elif owned:
            glyph = cell.letter if cell.kind == "shared" else cell.letter.lower()
        else:
            glyph = ":" if cell.kind == "cached" else "·"
        if self.zoom == LETTERS:
            return [(glyph, style)]
        if owned:
            return [(glyph, style), (FILLS[cell.fill], self._paint(f"{look(cell)} fill", cell.letter, over))]
        return [(glyph + " ", style)]

    def _half_blocks(self, upper: int) -> tuple[str, Style]:
        """Two places, one above the other."""
        places = [place for place in (upper, upper + self.grid.per_row) if place <= self.grid.places]
        blocks = [self.arrangement.block(place) for place in places]
        cells = [*map(self.view.cell, blocks), None][:2]
        over = self._over(*blocks)
        top, bottom = (overview_color(cell) for cell in cells)
        used = [cell is not None and cell.kind not in ("free", "cached") for cell in cells]
        if self.app.no_color:
            glyph = "▀" if used == [True, False] else "▄" if used == [False, True] else "█" if all(used) else "·"
            return glyph, self._paint("half", "", over)
        if top == bottom and not any(used):
            return ("·" if cells[0] is not None and cells[0].kind == "free" else ":"), self._paint(
                f"half {top}", "", over
            )
        return "▀", self._paint(f"half {top} {bottom}", "", over)

    def _density(self, first: int) -> tuple[str, Style]:
        """One cell for a group of places from `first` on: how many are used, and by whom most of them."""
        cached = self._densities.get(first)
        if cached is not None:
            return cached
        end = min(first + self.grid.group, self.grid.places + 1)
        if self.arrangement.order == "id":
            blocks: Sequence[int] = range(first, end)
            found = density(self.view.group(first, end))
        else:
            blocks = [self.arrangement.block(place) for place in range(first, end)]
            found = density(self.view.group_of(blocks))
        over = self._over(*blocks) if self.marked or self.selected in blocks else ""
        drawn = self._densities[first] = (found.glyph, self._paint(f"half {found.color}", "", over))
        return drawn

    def _paint(self, what: str, letter: str = "", over: Over = "") -> Style:
        return self._styles.get(what, letter, over)

    def _redraw(self) -> None:
        self._strips.clear()
        self._densities.clear()
        self._late.clear()
        self.refresh()

    @property
    def rest(self) -> int:
        """Free blocks behind the shown ones."""
        return self.view.num_blocks - self.grid.places

    def _lay_out(self) -> None:
        """The pool or the widget has another size."""
        if not self._fit():
            self._redraw()

    def _fit(self) -> bool:
        """Find the zoom and the part of the pool to show. True when all of it has to be drawn anew, and will be."""
        room, blocks = self._room, self.view.num_blocks
        zoom, places = self.zoom, blocks
        if blocks and self.size.height:
            used = None if self.whole else self._extent.end
            chosen = self.zoom if self._zoomed else None
            zoom, places = fitting(room, blocks, used, chosen, letters_at_least=self.app.no_color)
        before, grid = self.grid, Grid.fit(zoom, room, places, blocks)
        if (zoom, grid) == (self.zoom, before):
            return False
        rezoomed, reshaped = zoom != self.zoom, replace(grid, places=before.places) != before
        self.zoom, self.grid = zoom, grid
        for line in range(min(before.lines, grid.lines) - 1, max(before.lines, grid.lines) + 1):
            self._strips.pop(line, None)  # a row may have been cut short, and the rest is told behind the last one
        self.virtual_size = Size(0, grid.lines + (1 if self.rest else 0))
        if rezoomed or reshaped:
            self._redraw()
            self.post_message(self.Rearranged())
            return True
        top = max(0, min(before.lines, grid.lines) - 1 - self.scroll_offset.y)
        self.refresh(Region(0, top, self.size.width, max(1, self.size.height - top)))
        return False

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()
        self._densities.clear()

    # -- the cursor ----------------------------------------------------------------------------

    def select(self, block: int) -> None:
        """Put the cursor on `block` and bring it into view."""
        block = max(1, min(block, self.view.num_blocks))
        if not self.view.num_blocks or block == self.selected:
            return
        if self.arrangement.place(block) > self.grid.places:
            self.show_whole(True)
        for changed in {block, self.selected or block}:
            self._strips.pop(self.line_of(changed), None)
            self._densities.pop(self._group_at(changed), None)
        self.selected = block
        self.refresh()
        self._scroll_to_cursor(block)
        self.post_message(self.Selected())

    def _scroll_to_cursor(self, block: int) -> None:
        line = self.line_of(block)
        if line < self.scroll_offset.y:
            self.scroll_to(y=line, animate=False)
        elif line >= self.scroll_offset.y + self.size.height:
            self.scroll_to(y=line - self.size.height + 1, animate=False)

    def action_move(self, columns: int, rows: int) -> None:
        if self.selected is None:
            self.select(1)
        else:
            target = self.arrangement.place(self.selected) + (columns + rows * self.grid.per_row) * self.grid.group
            if 1 <= target <= self.grid.places:
                self.select(self.arrangement.block(target))

    def action_jump(self, place: int) -> None:
        if self.view.num_blocks:
            self.select(self.arrangement.block(place if place > 0 else self.grid.places))

    def mark(self, blocks: Iterable[int]) -> None:
        """Show these, and the others in the shade; none: all as they are."""
        self.marked = frozenset(blocks)
        self._redraw()

    def action_mark_none(self) -> None:
        self.mark(())

    def set_order(self, order: Order) -> None:
        """Show the blocks in another order; the cursor stays on its block."""
        self.arrangement.choose(order)
        self._extent.forget()
        if not self._fit():
            self._redraw()
        if self.selected is not None:
            self._scroll_to_cursor(self.selected)
        self.post_message(self.Rearranged())

    def action_order(self) -> None:
        """The next order."""
        self.set_order(ORDERS[(ORDERS.index(self.arrangement.order) + 1) % len(ORDERS)])

    def action_zoom(self, step: int) -> None:
        """To the next zoom, in or out."""
        zoom = max(DENSITY, min(LETTERS_AND_FILL, (LETTERS if self.zoom is None else self.zoom) + step))
        if zoom != self.zoom:
            self.choose_zoom(zoom)

    def choose_zoom(self, zoom: int) -> None:
        """This one, whatever fits."""
        self.zoom, self._zoomed = zoom, True
        self._refit()

    def show_whole(self, whole: bool) -> None:
        """All of the pool, or the part with content; at the zoom that fits."""
        self.whole, self._zoomed = whole, False
        self._refit()

    def action_whole(self) -> None:
        self.show_whole(not self.whole)

    def _refit(self) -> None:
        self.grid = Grid()
        self._fit()
        self.post_message(self.Rearranged())
        if self.selected is not None:
            self._scroll_to_cursor(self.selected)

    def action_next_shared(self) -> None:
        """The next block with several owners, from the cursor on and round again."""
        mirror = self.view.mirror
        count, at = self.view.num_blocks, self.arrangement.place(self.selected or 0)
        for step in range(1, count + 1):
            block = self.arrangement.block((at + step - 1) % count + 1)
            if mirror is not None and mirror.refs[block] > 1:
                self.select(block)
                return

    def action_largest_hole(self) -> None:
        """The first block of the longest run without an owner."""
        mirror = self.view.mirror
        if mirror is None:
            return
        best, longest, begin = 1, 0, 1
        for block in range(1, mirror.num_blocks + 2):
            if block > mirror.num_blocks or mirror.refs[block]:
                if block - begin > longest:
                    best, longest = begin, block - begin
                begin = block + 1
        self.select(best)

    def on_click(self, event: events.Click) -> None:
        block = self.block_at(event.x, event.y + self.scroll_offset.y)
        if block is not None:
            self.select(block)


def brief(seconds: float) -> str:
    """A time span in at most three cells."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{min(99, int(seconds // size))}{unit}"
    return f"{int(seconds)}s"


def _turn(lines: list[int], late: set[int], most: int) -> tuple[list[int], set[int]]:
    """(the lines to draw now, those that must wait). Lines that waited already come first."""
    ordered = sorted(lines, key=lambda line: line not in late)
    return ordered[:most], set(ordered[most:])
