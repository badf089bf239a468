"""The block table of the chat in front: logical block to physical block, as an operating system's page table."""

from __future__ import annotations

from textual.content import Content

from pagechat.app.panels import PaneData, cut
from pagechat.app.panels.figures import newest_table
from pagechat.app.widgets.tab_bar import owner_color


def content(data: PaneData, width: int, height: int) -> Content:
    mirror = data.view.mirror
    table = newest_table(mirror, data.active) if mirror is not None else None
    if mirror is None or table is None:
        return Content.styled(
            "This chat holds no blocks now. Its next answer takes some, or finds them cached.", "$muted"
        )
    letter = data.view.letters.get(data.active)
    digits = len(str(mirror.num_blocks))
    shared = sum(mirror.refs[block] > 1 for block in table.blocks)
    empty = len(table.blocks) * mirror.block_size - table.length
    head = Content.assemble(
        (letter, f"bold {owner_color(letter)}"),
        f" sequence {table.seq}: {table.length:,} tokens in {len(table.blocks):,} blocks, {shared:,} shared, "
        f"{empty} slots empty",
        ("   logical→physical, * shared", "$muted"),
    )
    entries = []
    for index, block in enumerate(table.blocks):
        mark, style = ("*", "bold $block-shared") if mirror.refs[block] > 1 else (" ", "$foreground")
        if block == data.selected:
            style = "bold reverse"
        entries.append(Content.styled(f"{index:>4}→{block:0{digits}}{mark}", style))
    columns = max(1, width // (7 + digits))
    rows = [Content(" ").join(entries[start : start + columns]) for start in range(0, len(entries), columns)]
    room = max(1, height - 1)
    if len(rows) > room > 1:  # the end is where things happen
        rows = [*rows[: room // 2], *rows[len(rows) - (room - room // 2) :]]
    return cut([head, *rows], height)
