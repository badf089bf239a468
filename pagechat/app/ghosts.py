"""The ghost map: what each allocation policy would keep of the same memory for the same requests, drawn as regions.

```
paged     aaaabbAA····················      blocks that hold tokens, wherever they lie
maximum   aaaa▒▒▒▒▒▒▒▒░░░░bb▒▒▒▒▒▒▒▒▒▒      a token · ▒ kept for what may come · ░ never to be used · free
```
Each cell stands for the same number of slots in every map.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from engine.blocks.observe.mirror import PoolMirror
from engine.protocol import ShadowRegion, ShadowStatus
from pagechat.app.panels.compare import NAMES, WORDS
from pagechat.app.pool_view import PoolView
from pagechat.app.widgets.tab_bar import owner_color

FREE, NEVER, RESERVED = "·", "░", "▒"


@dataclass(frozen=True, slots=True)
class Cell:
    glyph: str
    """FREE, NEVER, RESERVED, or the letter of an owner: a token."""
    letter: str = ""


def content(view: PoolView, width: int, height: int) -> Content:
    """All policies below each other, as many lines each as fit."""
    mirror = view.mirror
    if mirror is None:
        return Content.styled("There is no engine.", "$muted")
    order = list(NAMES)
    shadows = sorted((one for one in view.shadows if one.policy in NAMES), key=lambda one: order.index(one.policy))
    if not (mirror.running or mirror.waiting) or not any(shadow.requests_held for shadow in shadows):
        return Content.styled(
            "No request is live. Ask something, in several chats at once or /several 4: while answers come, each map "
            "shows the same memory under another policy.",
            "$muted",
        )
    lines_each = max(1, (height - 1) // len(shadows) - 2)
    slots, cells = mirror.num_blocks * mirror.block_size, lines_each * width
    live = next((shadow.requests_held for shadow in shadows if shadow.policy == "paged"), 0)
    parts: list[Content] = []
    for shadow in shadows:
        paged = shadow.policy == "paged"
        drawn = blocks(view, mirror, cells) if paged else regions(view, shadow.regions, slots, cells)
        told = head(shadow, slots, max(live, shadow.requests_held)).truncate(width, ellipsis=True)
        parts += [told, _rows(drawn, width), Content("")]
    legend = Content.assemble(
        ("a", "$background on $block-owner-1"),
        " a token of a's   ",
        (RESERVED, "$block-owner-1"),
        " kept for what a may still say   ",
        (NEVER, "$error"),
        " never to be used   ",
        (FREE, "$block-free"),
        (f" free   one cell is about {max(1, round(slots / cells)):,} slots", "$muted"),
    )
    parts.append(legend.truncate(width, ellipsis=True))
    return Content("\n").join(parts)


def head(shadow: ShadowStatus, slots: int, live: int) -> Content:
    """`maximum  holds 2 of 5 · 3 % of all slots hold a token · 60 % kept for nothing yet · ...`"""
    shares = [
        (shadow.slots_used, "hold tokens", "$success"),
        (shadow.reserved_waste, "kept for later", "$warning"),
        (shadow.internal_waste, "never used", "$error"),
        (shadow.external_waste, "free, yet one waits", "bold $error"),
    ]
    told = [Content.styled(f"{100 * count / slots:.0f} % {what}", style) for count, what, style in shares if count]
    holds = "bold $error" if shadow.requests_held < live else "bold"
    name = NAMES[shadow.policy]
    return Content.assemble(
        (f"{name:<11}", "bold"),
        (f"holds {shadow.requests_held:,} of {live:,}", holds),
        "   ",
        Content("   ").join(told),
        (f"   {WORDS[shadow.policy]}", "$muted"),
    )


def blocks(view: PoolView, mirror: PoolMirror, cells: int) -> list[Cell]:
    """The real pool, sampled: the block in the middle of each cell, or the first owned one that the cell holds."""
    drawn: list[Cell] = []
    for cell in range(cells):
        first = cell * mirror.num_blocks // cells
        end = max(first + 1, (cell + 1) * mirror.num_blocks // cells)
        owned = next((block + 1 for block in range(first, end) if mirror.refs[block + 1]), None)
        if owned is None:
            drawn.append(Cell(FREE))
            continue
        letter = view.letters.get(mirror.tables[mirror.first_owner(owned)].session)
        drawn.append(Cell(letter if mirror.refs[owned] > 1 else letter.lower(), letter))
    return drawn


def regions(view: PoolView, kept: list[ShadowRegion], slots: int, cells: int) -> list[Cell]:
    """What a contiguous policy keeps. A region that holds a token shows one, however small it is."""
    drawn = [Cell(FREE)] * cells

    def paint(begin: int, end: int, cell: Cell, least: int) -> None:
        first = begin * cells // slots
        for place in range(first, min(cells, max(first + least, round(end * cells / slots)))):
            drawn[place] = cell

    for region in kept:
        letter = view.letters.get(region.session)
        paint(region.first, region.first + region.length, Cell(NEVER), 1)
        paint(region.first, region.first + region.longest, Cell(RESERVED, letter), 1)
        paint(region.first, region.first + region.tokens, Cell(letter.lower(), letter), min(1, region.tokens))
    return drawn


def _rows(drawn: list[Cell], width: int) -> Content:
    rows = [drawn[start : start + width] for start in range(0, len(drawn), width)]
    return Content("\n").join([Content("").join(_runs(row)) for row in rows])


def _runs(row: list[Cell]) -> list[Content]:
    """Cells that look alike, together."""
    parts: list[Content] = []
    start = 0
    for at in range(1, len(row) + 1):
        if at == len(row) or row[at] != row[start]:
            parts.append(Content.styled(row[start].glyph * (at - start), _style(row[start])))
            start = at
    return parts


def _style(cell: Cell) -> str:
    if cell.glyph == FREE:
        return "$block-free"
    if cell.glyph == NEVER:
        return "$error"
    if cell.glyph == RESERVED:
        return owner_color(cell.letter)
    shared = cell.glyph.isupper()
    return "bold $background on $block-shared" if shared else f"$background on {owner_color(cell.letter)}"
