"""Text that grows at its end: what stands is wrapped and styled once, however much comes after it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

from pagechat.app.rows import Rows


class Passage(Visual):
    """Pieces under each other, a blank line between them."""

    def __init__(self, pieces: Iterable[Rows] = ()) -> None:
        self._pieces: list[Rows] = []
        self._above: list[int] = []
        """Rows above each piece."""
        self._strips: list[Strip] = []
        self._rendered = 0
        """Pieces whose lines are in `_strips`."""
        self._rendered_for: tuple[int, Style] | None = None
        self.extend(pieces)

    def extend(self, pieces: Iterable[Rows]) -> None:
        for piece in pieces:
            above = self._above[-1] + len(self._pieces[-1].rows) + 1 if self._pieces else 0
            self._pieces.append(piece)
            self._above.append(above)

    def forget_lines(self) -> None:
        """Colours have changed: style everything again."""
        self._rendered_for = None

    def __str__(self) -> str:
        return "\n\n".join(piece.plain for piece in self._pieces)

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        if options.selection is not None:
            return [
                line
                for piece, above in zip(self._pieces, self._above, strict=True)
                for line in _strips(piece, above, width, style, options)
            ][:height]
        if (width, style) != self._rendered_for:
            self._rendered_for, self._rendered, self._strips = (width, style), 0, []
        for piece, above in zip(self._pieces[self._rendered :], self._above[self._rendered :], strict=True):
            self._strips += _strips(piece, above, width, style, options)
        self._rendered = len(self._pieces)
        return self._strips[:height]

    def get_height(self, rules: RulesMap, width: int) -> int:
        return sum(len(piece.lines(width)) for piece in self._pieces) + max(0, len(self._pieces) - 1)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return max((piece.natural_width for piece in self._pieces), default=0)

    def get_minimal_width(self, rules: RulesMap) -> int:
        return min(1, len(self._pieces))


def _strips(piece: Rows, above: int, width: int, style: Style, options: RenderOptions) -> list[Strip]:
    """The lines of a piece, and before them the blank one that parts it from the piece above."""
    lines = piece.strips(width, style, options, above)
    return [Strip([Segment("", style.rich_style_with_offset(0, above - 1))]), *lines] if above else lines
