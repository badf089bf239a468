"""Where places stand on the block map: what follows from its zoom, its room and the size of the pool.

```
zoom -1  ▃ one cell for many blocks: how many are used, in the colour of who has most of them; any pool in one view
zoom 0   ▀ two blocks a cell, colour only: the whole of a large pool at a glance
zoom 1   a one cell a block: letter of the owner, UPPER CASE when shared, ▃ the block being filled
zoom 2   a▃ two cells a block: letter and fill
```
Places count from 1. Which block stands at a place is a matter of the arrangement.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.geometry import Size

DENSITY, OVERVIEW, LETTERS, LETTERS_AND_FILL = -1, 0, 1, 2
"""The zooms."""
LEAST_ROWS = 3
"""Of a map that shows a part of the pool."""
SCREENS = 8
"""A pool that needs more screens than this at one zoom starts at the one before it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The figures are kept: they are asked for thousands of times a redraw."""

    places: int = 0
    label_width: int = 0
    """Cells in front of a line; 0: there is no room for a label."""
    cell_width: int = 1
    per_row: int = 1
    """Places in one row: a multiple of eight, where there is room. Cells, at the density zoom."""
    group: int = 1
    """Places that share a cell: as few as show the whole pool, at the density zoom."""
    per_line: int = 1
    """Places in one line, which has two rows at the overview zoom."""

    @classmethod
    def fit(cls, zoom: int | None, room: Size, places: int, blocks: int | None = None) -> Grid:
        """`zoom` None: none yet; as if of one cell a place. `blocks`: of the pool, which may be more than have places;
        their numbers need room."""
        label_width = _label_width(room, blocks or places)
        cell_width = 2 if zoom == LETTERS_AND_FILL else 1
        cells = (room.width - label_width) // cell_width
        per_row = max(1, cells // 8 * 8 if cells >= 8 else cells)
        group = max(1, -(-places // (per_row * max(1, room.height)))) if zoom == DENSITY else 1
        per_line = per_row * (2 if zoom == OVERVIEW else group)
        return cls(places, label_width, cell_width, per_row, group, per_line)

    @property
    def lines(self) -> int:
        return -(-self.places // self.per_line)

    def line_of(self, place: int) -> int:
        return (place - 1) // self.per_line

    def first_of_line(self, line: int) -> int:
        """The first place of that line; there may be none so far down."""
        return line * self.per_line + 1

    def first_of_cell(self, place: int) -> int:
        """The first place of the cell that shows `place` at the density zoom."""
        return place - (place - 1) % self.group

    def place_at(self, x: int, y: int) -> int | None:
        """The place at cell x of line y, if one is there."""
        column = (x - self.label_width) // self.cell_width
        place = self.first_of_line(y) + column * self.group
        return place if 0 <= column < self.per_row and 1 <= place <= self.places else None


def best_zoom(room: Size, places: int, letters_at_least: bool) -> int:
    """The largest zoom that shows the pool on one screen; letters on a few screens before colour on one.

    `letters_at_least`: there are no colours to show it by.
    """
    width, height = max(1, room.width - _label_width(room, places)), max(1, room.height)
    if width // 2 // 8 * 8 * height >= places:
        return LETTERS_AND_FILL
    if letters_at_least or width * height * SCREENS >= places:
        return LETTERS
    return OVERVIEW if 2 * width * height * SCREENS >= places else DENSITY


def fitting(room: Size, blocks: int, used: int | None, zoom: int | None, *, letters_at_least: bool) -> tuple[int, int]:
    """(the zoom, how many places to show) for a pool of which the first `used` places hold something.

    What is used is what there is to see: it, and a little of the free rest, is shown as large as it fits. All of the
    pool is shown when that fits too, when it is only seen from afar, and for `used` None. `zoom`: a person's choice.
    """
    if used is None or (zoom is not None and zoom < LETTERS):
        return (best_zoom(room, blocks, letters_at_least) if zoom is None else zoom), blocks
    inner = Size(room.width, max(1, room.height - 1))  # the last line tells of the rest
    found = zoom
    if found is None:
        found = best_zoom(room, blocks, letters_at_least)
        if found == LETTERS_AND_FILL:
            return found, blocks
        found = max(found, _largest(inner, blocks, used, letters_at_least))
    if found < LETTERS:
        return found, blocks
    per_row = Grid.fit(found, inner, blocks).per_row
    rows = max(LEAST_ROWS, -(-used // per_row) + 1)
    return found, min(blocks, rows * per_row)


def _largest(room: Size, blocks: int, used: int, letters_at_least: bool) -> int:
    """The largest zoom that shows the used places on one screen, or letters on a few."""
    for zoom in (LETTERS_AND_FILL, LETTERS):
        if -(-used // Grid.fit(zoom, room, blocks).per_row) + 1 <= room.height:
            return zoom
    return best_zoom(room, used, letters_at_least)


def _label_width(room: Size, places: int) -> int:
    width = len(str(places)) + 1
    return width if room.width >= width + 16 else 0
