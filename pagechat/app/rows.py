"""Lines of text and tables that know how to be as wide as they may: what stands before a line stands before all it is
wrapped into, and a table's cells are wrapped inside the table.

What is drawn beside the text (bars of quotes and code, rules of tables, spaces that indent) is no part of it: it cannot
be selected, and is not copied. Each row is one line of `Rows.plain`, whatever it is wrapped into; a table's cells are
parted by tabs there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich._wrap import divide_line
from rich.cells import set_cell_size
from rich.segment import Segment
from textual.content import Content
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions

from pagechat.app.drawing import failed

NARROWEST = 8
"""Cells that a text keeps, however much stands before it."""
NARROWEST_CELL = 6
"""Cells of a column of a table; with less for each, its rows are shown as lists."""
EMPTY = Content("")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a drawn line. `at`: its place in the row's text; None: it is no part of the text."""

    content: Content
    at: int | None = None


Line = list[Part]


@dataclass(frozen=True, slots=True)
class TextRow:
    """One line of text. `verbatim`: it is cut where it is full, not between words."""

    content: Content
    first: Content = EMPTY
    """What stands before its first line."""
    rest: Content = EMPTY
    """Before the others."""
    verbatim: bool = False
    mark: Content = EMPTY
    """Before its first line too, and a part of the text: an item's number."""

    @property
    def plain(self) -> str:
        return self.mark.plain + self.content.plain

    @property
    def lead(self) -> int:
        """Cells before its lines."""
        return max(self.first.cell_length + self.mark.cell_length, self.rest.cell_length)

    def lines(self, width: int) -> list[Line]:
        room = max(2, width - self.lead, min(NARROWEST, width))
        wrapped = _cut(self.content, room) if self.verbatim else _wrap(self.content, room)
        lines: list[Line] = []
        for number, (content, at) in enumerate(wrapped):
            first = number == 0
            before = _fitted(self.first if first else self.rest, width - room)
            line = [Part(before)] if before else []
            if first and self.mark:
                line.append(Part(_fitted(self.mark, width - room - before.cell_length), 0))
            lines.append([*line, Part(content, at + len(self.mark.plain))])
        return lines


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table, which holds the shape of all of them."""

    cells: tuple[Content, ...]
    table: Table
    number: int
    """0: the heads of the columns."""
    first: Content = EMPTY
    rest: Content = EMPTY

    @property
    def plain(self) -> str:
        return "\t".join(cell.plain for cell in self.cells)

    @property
    def lead(self) -> int:
        """Cells before its lines."""
        return max(self.first.cell_length, self.rest.cell_length)

    def lines(self, width: int) -> list[Line]:
        room = max(2, width - self.lead, min(NARROWEST, width))
        widths = self.table.widths(room)
        drawn = self._as_list(room) if widths is None else self._as_row(widths)
        befores = itertools.chain([self.first], itertools.repeat(self.rest))
        return [
            [Part(_fitted(before, width - room)), *line] if before else line
            for before, line in zip(befores, drawn, strict=False)
        ]

    def _places(self) -> list[int]:
        """Where each cell begins in `plain`."""
        lengths = [len(cell.plain) + 1 for cell in self.cells]
        return [0, *itertools.accumulate(lengths)][: len(self.cells)]

    def _as_row(self, widths: Sequence[int]) -> list[Line]:
        columns = [_wrap(cell, width) for cell, width in zip(self.cells, widths, strict=True)]
        style = "bold" if self.number == 0 else ""
        lines: list[Line] = []
        for number in range(max(map(len, columns))):
            line: Line = []
            for begin, column, width in zip(self._places(), columns, widths, strict=True):
                if line:
                    line.append(Part(Content.styled(" │ ", "$frame")))
                content, at = column[number] if number < len(column) else (EMPTY, len(column[-1][0]) + column[-1][1])
                line.append(Part(content.stylize(style) if style else content, begin + at))
                line.append(Part(Content(" " * max(0, width - content.cell_length))))
            lines.append(line)
        if self.number == 0:
            lines.append([Part(Content.styled("─┼─".join("─" * width for width in widths), "$frame"))])
        return lines

    def _as_list(self, width: int) -> list[Line]:
        """Each cell behind the head of its column, on lines of its own; the heads alone where there is nothing else."""
        if self.number == 0 and self.table.rows > 1:
            return []
        lines: list[Line] = [[]] if self.number > 1 else []
        for begin, head, cell in zip(self._places(), self.table.heads, self.cells, strict=True):
            name = Content.styled(f"{head.plain}: ", "bold") if self.number and head.plain else EMPTY
            name = _fitted(name, max(0, width - NARROWEST))
            room = max(2, width - name.cell_length)
            for number, (content, at) in enumerate(_wrap(cell, room)):
                before = Content(" " * name.cell_length) if number else name
                lines.append([Part(before), Part(content, begin + at)] if before else [Part(content, begin + at)])
        return lines


class Table:
    """The columns of a table."""

    def __init__(self, rows: Sequence[Sequence[Content]]) -> None:
        columns = max(map(len, rows), default=0)
        self.cells = [(*row, *[EMPTY] * (columns - len(row))) for row in rows]
        self._widths = [max(1, *(cell.cell_length for cell in column)) for column in zip(*self.cells, strict=True)]

    @property
    def heads(self) -> tuple[Content, ...]:
        return self.cells[0]

    @property
    def rows(self) -> int:
        return len(self.cells)

    @property
    def natural(self) -> int:
        """Cells with nothing wrapped."""
        return sum(self._widths) + 3 * max(0, len(self._widths) - 1)

    def widths(self, room: int) -> list[int] | None:
        """Cells of each column so that the table is `room` wide at most: the widest give way first. None: too narrow
        for a table."""
        room -= 3 * (len(self._widths) - 1)
        widest = max(self._widths, default=0)
        left, columns = room, len(self._widths)
        if sum(self._widths) > room:
            for number, width in enumerate(sorted(self._widths)):
                share = left // (columns - number)
                if width > share:
                    widest = share
                    break
                left -= width
        if widest < NARROWEST_CELL and sum(self._widths) > room:
            return None
        return [min(width, widest) for width in self._widths]

    def table_rows(self, leads: Iterable[tuple[Content, Content]]) -> list[TableRow]:
        """`leads`: what stands before each row's first line, and before the others."""
        return [
            TableRow(cells, self, number, first, rest)
            for number, (cells, (first, rest)) in enumerate(zip(self.cells, leads, strict=False))
        ]


class Rows:
    """Rows under each other: a piece of an answer as it is drawn."""

    def __init__(self, rows: Sequence[TextRow | TableRow]) -> None:
        self.rows = rows
        self.plain = "\n".join(row.plain for row in rows)
        """The text alone."""
        self._laid_out: tuple[int, list[tuple[int, Line]]] = (-1, [])

    @classmethod
    def of_text(cls, text: str) -> Rows:
        """As it is: nothing is read into it."""
        return cls([TextRow(Content(line)) for line in text.expandtabs(4).split("\n")])

    def __str__(self) -> str:
        return self.plain

    def lines(self, width: int) -> list[tuple[int, Line]]:
        """(index of its row, the line) of each line at this width."""
        if self._laid_out[0] != width:
            self._laid_out = (width, self._lay_out(max(1, width)))
        return self._laid_out[1]

    def _lay_out(self, width: int) -> list[tuple[int, Line]]:
        try:
            return [(number, line) for number, row in enumerate(self.rows) for line in row.lines(width)]
        except Exception as error:
            failed(error)
            return [
                (number, [Part(Content(set_cell_size(row.plain, width).rstrip()), 0)])
                for number, row in enumerate(self.rows)
            ]

    def text_at(self, width: int) -> str:
        """What is seen at this width, without colours."""
        lines = ("".join(part.content.plain for part in line).rstrip() for _, line in self.lines(width))
        return "\n".join(lines)

    @property
    def natural_width(self) -> int:
        """Cells with nothing wrapped."""
        return max((_natural(row) for row in self.rows), default=0)

    def strips(self, width: int, style: Style, options: RenderOptions, above: int = 0) -> list[Strip]:
        """The lines as segments that know their places, counted from `above` rows over these."""
        lines = self.lines(width)
        try:
            return [_strip(line, above + number, style, options) for number, line in lines]
        except Exception as error:
            failed(error)
            return [Strip([Segment("".join(part.content.plain for part in line))]) for _, line in lines]


def _natural(row: TextRow | TableRow) -> int:
    return row.lead + (row.content.cell_length if isinstance(row, TextRow) else row.table.natural)


def _strip(line: Line, y: int, style: Style, options: RenderOptions) -> Strip:
    segments: list[Segment] = []
    at = 0
    for part in line:
        content = part.content
        if part.at is not None:
            at = part.at
            content = _selected(content, at, y, options)
        for text, own in content.render(style, end="", parse_style=options.get_style):
            segments.append(Segment(text, (style + own).rich_style_with_offset(at, y)))
            if part.at is not None:
                at += len(text)
    return Strip(segments)


def _selected(content: Content, at: int, y: int, options: RenderOptions) -> Content:
    selection: Selection | None = options.selection
    span = selection.get_span(y) if selection is not None else None
    if span is None or options.selection_style is None:
        return content
    length = len(content.plain)
    begin, end = span[0] - at, length if span[1] == -1 else span[1] - at
    begin, end = max(0, begin), min(length, end)
    return content.stylize(options.selection_style, begin, end) if begin < end else content


def _wrap(content: Content, width: int) -> list[tuple[Content, int]]:
    """(line, its place) of each line of a text that is cut between words, and inside one that is longer."""
    if content.cell_length <= width:
        return [(content, 0)]
    cuts = divide_line(content.plain, width, fold=True)
    return [(_fitted(line.rstrip(), width), at) for line, at in zip(content.divide(cuts), [0, *cuts], strict=True)]


def _cut(content: Content, width: int) -> list[tuple[Content, int]]:
    """(line, its place) of each line of a text that is cut where it is full."""
    if content.cell_length <= width:
        return [(content, 0)]
    lines, at = [], 0
    for line in content.fold(width):
        lines.append((line, at))
        at += len(line.plain)
    return lines


def _fitted(content: Content, width: int) -> Content:
    """No wider than that."""
    return content if content.cell_length <= width else content.truncate(max(0, width))
