"""Commands of the memory pane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagechat.app.commands import Command

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Memory"


def toggle(screen: MainScreen, argument: str) -> None:
    """Between the chat and the map."""
    if screen.focused is screen.block_map:
        screen.to_composer()
    else:
        screen.to_map()


def step_block(screen: MainScreen, by: int) -> None:
    """The cursor to the next block of the active chat, in its table's order."""
    mirror = screen.view.mirror
    tables = [t for t in mirror.tables.values() if t.session == screen.tabs.active.id and t.blocks] if mirror else []
    if tables:
        blocks = max(tables, key=lambda table: table.seq).blocks
        selected = screen.block_map.selected
        at = blocks.index(selected) + by if selected in blocks else 0
        screen.block_map.select(blocks[at % len(blocks)])


COMMANDS = (
    Command("memory", "Memory", "To the block map and back", toggle, GROUP, "f3", footer="Memory"),
    Command(
        "memory.next_block",
        "Next block of this chat",
        "In the order of its block table",
        lambda screen, _: step_block(screen, 1),
        GROUP,
        "right_square_bracket",
        "map",
    ),
    Command(
        "memory.previous_block",
        "Previous block of this chat",
        "In the order of its block table",
        lambda screen, _: step_block(screen, -1),
        GROUP,
        "left_square_bracket",
        "map",
    ),
)
