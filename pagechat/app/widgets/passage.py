"""Text that grows at its end: what stands is wrapped and styled once, however much comes after it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual


class Passage(Visual):
    """Pieces under each other, a blank line between them."""

    def __init__(self, pieces: Iterable[Content] = ()) -> None:
        self._pieces: list[Content] = []
        self._above: list[int] = []
        """Unwrapped lines above each piece."""
        self._strips: list[Strip] = []
        self._rendered = 0
        """Pieces whose lines are in `_strips`."""
        self._rendered_for: tuple[int, Style] | None = None
        self.extend(pieces)

    def extend(self, pieces: Iterable[Content]) -> None:
        for piece in pieces:
            above = self._above[-1] + self._pieces[-1].plain.count("\n") + 2 if self._pieces else 0
            self._pieces.append(piece)
            self._above.append(above)

    def forget_lines(self) -> None:
        """Colours have changed: style everything again."""
        self._rendered_for = None

    @property
    def whole(self) -> Content:
        return Content("\n\n").join(self._pieces)

    def __str__(self) -> str:
        return self.whole.plain

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        if options.selection is not None:
            return self.whole.render_strips(width, height, style, options)
        if (width, style) != self._rendered_for:
            self._rendered_for, self._rendered, self._strips = (width, style), 0, []
        for piece, above in zip(self._pieces[self._rendered :], self._above[self._rendered :], strict=True):
            if above:
                piece, above = Content("\n") + piece, above - 1  # the blank line before it
            self._strips += (_lower(line, above) for line in piece.render_strips(width, None, style, options))
        self._rendered = len(self._pieces)
        return self._strips[:height]

    def get_height(self, rules: RulesMap, width: int) -> int:
        return sum(piece.get_height(rules, width) for piece in self._pieces) + max(0, len(self._pieces) - 1)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return max((piece.get_optimal_width(rules, container_width) for piece in self._pieces), default=0)

    def get_minimal_width(self, rules: RulesMap) -> int:
        return max((piece.get_minimal_width(rules) for piece in self._pieces), default=0)


def _lower(line: Strip, by: int) -> Strip:
    """The line as part of a text with so many more above it: its segments know their places, for selecting text."""
    style = line._segments[0].style if line else None
    if not by or style is None:
        return line
    x, y = style.meta["offset"]
    return line.apply_offsets(x, y + by)
