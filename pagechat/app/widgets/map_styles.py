"""The colours and glyphs of the block map. It knows how a block looks, not where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.color import Color as RichColor
from rich.style import Style
from textual.color import Color
from textual.widget import Widget

from pagechat.app.cells import Cell, Group
from pagechat.app.widgets.tab_bar import owner_number
from pagechat.themes import text_on

FILLS = " ▁▂▃▄▅▆▇█"
Over = Literal["", "cursor", "mark", "aside"]
"""What lies over a block's own look: the cursor; the mark of a block that was asked for; the shade on the others."""
StyleKey = tuple[str, str, Over]


@dataclass(frozen=True, slots=True)
class Density:
    """How many blocks look in one cell."""

    glyph: str
    color: str
    """Name of a theme variable."""


def density(group: Group) -> Density:
    """The height is the share of blocks with an owner, the colour that of who owns most; no owner: `:` or `·`."""
    if not group.used:
        return Density(":" if group.cached else "·", "block-cached" if group.cached else "block-free")
    height = FILLS[max(1, group.used * 8 // group.blocks)]
    if group.copied:
        return Density(height, "block-cow")
    return Density(height, "block-shared" if group.shared else f"block-owner-{owner_number(group.letter)}")


def overview_color(cell: Cell | None) -> str:
    """Name of the theme variable for a block that is shown by colour alone."""
    if cell is None:
        return "ground"
    if cell.flash == "copy":
        return "block-cow"
    if cell.kind in ("free", "cached", "shared"):
        return f"block-{cell.kind}"
    return f"block-owner-{owner_number(cell.letter)}"


def look(cell: Cell) -> str:
    """What `MapStyles.get` is asked for."""
    return f"{cell.kind}!{cell.flash}" if cell.flash else cell.kind


class MapStyles:
    """Rich styles by look, made once a theme."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._styles: dict[StyleKey, Style] = {}

    def clear(self) -> None:
        """The theme has changed."""
        self._styles.clear()

    def get(self, look: str, letter: str = "", over: Over = "") -> Style:
        key = (look, letter, over)
        style = self._styles.get(key)
        if style is None:
            style = self._styles[key] = self._make(look, letter, over)
        return style

    def _make(self, look: str, letter: str, over: Over) -> Style:
        ground = self._widget.background_colors[1]

        def variable(name: str) -> Color:
            return ground if name == "ground" else Color.parse(self._widget.app.theme_variables[name])

        owner = variable(f"block-owner-{owner_number(letter)}") if letter else variable("block-cached")
        bold = False
        fore, back = owner, ground
        look, _, second = look.partition(" ")
        name, _, flash = look.partition("!")
        if name == "label":
            fore = variable("muted")
        elif name == "free":
            fore = variable("block-free")
        elif name == "shared":
            fore, back, bold = ground, variable("block-shared"), True
        elif name == "active":
            fore, back = text_on(owner), owner
        elif name == "filling":
            back = variable("panel")
        elif name == "half":
            colors = [variable(color) for color in second.split()] or [variable("foreground")]
            fore, back = colors[0], colors[1] if len(colors) > 1 else ground
        if flash:
            bold = True
            if flash == "copy":
                fore, back = text_on(variable("block-cow")), variable("block-cow")
            elif flash in ("evict", "preempt"):
                fore = variable("block-cow")
            elif name == "filling":
                back = variable("block-free")
            elif name == "active":
                back = owner.blend(variable("foreground"), 0.45)
                fore = text_on(back)
            elif name == "shared":
                back = variable("block-shared").blend(owner, 0.5)
        if second == "fill" and name != "filling":
            fore = back  # full: one solid tile in colour, a full glyph without
        if over == "cursor":
            fore, back, bold = ground, variable("accent"), True
        elif over == "aside":
            fore, back, bold = variable("block-free"), ground, False
        if self._widget.app.current_theme.ansi:  # what is mixed is none of the terminal's own colours
            fore = owner if fore.ansi is None else fore
            back = ground if back.ansi is None else back
        reverse = over == "cursor" and self._widget.app.no_color
        if back.ansi is not None and back.ansi >= 0 and over != "aside":
            # Nobody knows which of the terminal's colours can be read on another: its own ground on each can.
            fore, back, reverse = back, ground, True
        return Style(
            color=_rich(fore), bgcolor=_rich(back), bold=bold, underline=over in ("cursor", "mark"), reverse=reverse
        )


def _rich(color: Color) -> RichColor:
    return color.rich_color
