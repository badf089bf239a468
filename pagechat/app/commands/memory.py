"""Commands of the memory pane."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from engine.blocks.observe.mirror import MirrorGap
from pagechat.app.arrangement import ORDERS
from pagechat.app.commands import Command
from pagechat.app.panels.figures import newest_table
from pagechat.app.screens.ghosts import GhostScreen
from pagechat.app.screens.totals import TotalsScreen, in_words
from pagechat.app.widgets.banner import Banner

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Memory"

PANELS = {
    "overview": "The block, the table and the comparison in a line each",
    "block": "The block under the cursor: owners, fill, age, and the text in it",
    "table": "The block table of this chat, logical to physical",
    "compare": "What other allocation policies would hold and waste",
    "requests": "Every sequence, and where its time went",
    "forks": "Who was forked from whom, and what they share",
    "history": "The last minutes of the pool",
}


def toggle(screen: MainScreen, argument: str) -> None:
    """Between the chat and the map."""
    if screen.focused is screen.block_map:
        screen.to_composer()
    else:
        screen.to_map()


def step_block(screen: MainScreen, by: int) -> None:
    """The cursor to the next block of the active chat, in its table's order."""
    mirror = screen.view.mirror
    table = newest_table(mirror, screen.tabs.active.id) if mirror else None
    if table is not None:
        selected = screen.block_map.selected
        at = table.blocks.index(selected) + by if selected in table.blocks else 0
        screen.block_map.select(table.blocks[at % len(table.blocks)])


def panel(name: str, screen: MainScreen, argument: str) -> None:
    if not screen.memory_pane.display:
        screen.to_map()  # what is typed would go to an input that nobody sees
    screen.memory_pane.show_panel(name)


def freeze(screen: MainScreen, argument: str) -> None:
    """The map stands still while the engine goes on; again: it catches up."""
    if screen.view.frozen_at is None:
        screen.view.freeze()
        screen.notify(
            "The map stands still; the engine goes on. `.` shows the next step, space catches up.", markup=False
        )
    else:
        screen.thaw()


def step_frozen(screen: MainScreen, argument: str) -> None:
    if screen.view.frozen_at is None:
        screen.view.freeze()
    try:
        if not screen.view.step_frozen():
            screen.notify("Nothing has happened since.", markup=False)
    except MirrorGap:
        screen.thaw()


def order(screen: MainScreen, argument: str) -> None:
    """`/order` the next one; `/order owner` that one."""
    if not argument:
        screen.block_map.action_order()
    elif argument in ORDERS:
        screen.block_map.set_order(argument)
    else:
        screen.notify(f"The map can be ordered by {', '.join(ORDERS)}, not by {argument}.", markup=False)
        return
    screen.notify(f"The map shows its blocks by {ORDER_WORDS[screen.block_map.arrangement.order]}.", markup=False)


def ghost(screen: MainScreen, argument: str) -> None:
    """The same memory under each policy, drawn as maps."""
    screen.app.push_screen(GhostScreen(screen.view))


def totals(screen: MainScreen, argument: str) -> None:
    """The figures in sentences."""

    def tell() -> str:
        return in_words(screen.view, screen.name_of, screen.query_one(Banner).shown_text)

    screen.app.push_screen(TotalsScreen(tell))


ORDER_WORDS = {
    "id": "physical id: as they lie in memory",
    "owner": "owner: chat by chat, each in its table's order",
    "age": "age: what was written last comes first",
}

COMMANDS = (
    Command(
        "memory.totals", "Totals in words", "For screen readers, and to copy", totals, GROUP, "f6", slash="totals"
    ),
    Command("memory", "Memory", "To the block map and back", toggle, GROUP, "f3", slash="memory"),
    *(
        Command(f"memory.{name}", f"Panel: {name}", what, partial(panel, name), GROUP, f"{number}", "map")
        for number, (name, what) in enumerate(PANELS.items(), start=1)
    ),
    Command(
        "memory.ghost", "Ghost map", "What other allocation policies would keep of the same memory, as maps", ghost,
        GROUP, "g", "map", "ghost",
    ),
    Command(
        "memory.freeze", "Freeze", "The map stands still, the engine goes on; again: catch up", freeze, GROUP, "space",
        "map", "freeze",
    ),
    Command("memory.step", "Next step", "While frozen: what came next", step_frozen, GROUP, "full_stop", "map"),
    Command(
        "memory.next_block", "Next block of this chat", "In the order of its block table",
        lambda screen, _: step_block(screen, 1), GROUP, "right_square_bracket", "map",
    ),
    Command(
        "memory.previous_block", "Previous block of this chat", "In the order of its block table",
        lambda screen, _: step_block(screen, -1), GROUP, "left_square_bracket", "map",
    ),
    Command(
        "memory.next_shared", "Next shared block", "The next one with several owners",
        lambda screen, _: screen.block_map.action_next_shared(), GROUP, "s", "map itself",
    ),
    Command(
        "memory.largest_hole", "Largest hole", "The longest run of blocks without an owner",
        lambda screen, _: screen.block_map.action_largest_hole(), GROUP, "f", "map itself",
    ),
    Command(
        "memory.order", "Order of the map", "By physical id, by owner, by age", order, GROUP, "o", "map itself",
        "order", "id | owner | age",
    ),
    Command(
        "memory.unmark", "No marks", "All blocks as they are again, after b on a message",
        lambda screen, _: screen.block_map.mark(()), GROUP, "u", "map itself",
    ),
    Command(
        "memory.zoom_in", "Zoom in", "Letters, then letters with fill",
        lambda screen, _: screen.block_map.action_zoom(1), GROUP, "plus,equals_sign", "map itself",
    ),
    Command(
        "memory.whole", "Whole pool", "All of it, or the part with content as large as it fits",
        lambda screen, _: screen.block_map.action_whole(), GROUP, "0", "map itself", "whole",
    ),
    Command(
        "memory.zoom_out", "Zoom out", "Two blocks a cell, then all of the pool at once",
        lambda screen, _: screen.block_map.action_zoom(-1), GROUP, "minus", "map itself",
    ),
)  # fmt: skip
