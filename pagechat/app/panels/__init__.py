"""The panels below the map: each a function from what is known to text. None draws, asks or changes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content

from engine.protocol import ModelInfo
from pagechat.app.conversation import Conversation
from pagechat.app.gauges import Gauges
from pagechat.app.pool_view import PoolView

NameOf = Callable[[str], str]
"""What to call a session: the title of its tab, or its own name; safe to display."""

LABEL = 11
"""Cells of the labels in front of the lines."""
NAME = 18
"""Most characters of a session's name."""


@dataclass(frozen=True, slots=True)
class PaneData:
    """What the panels tell about."""

    view: PoolView
    gauges: Gauges
    model: ModelInfo | None
    active: str
    """Session of the chat in front."""
    selected: int | None
    """Block under the cursor."""
    chats: Sequence[Conversation]
    name_of: NameOf
    text_of: Callable[[str, int], str | None]
    """(session, logical block) -> the text in it, not yet safe to display; None while nobody knows."""
    hash_of: Callable[[int], str | None] = lambda block: None
    """The hash by which a block is found, in hexadecimal; None while nobody knows."""


Panel = Callable[[PaneData, int, int], Content]
"""(data, cells, lines) -> content."""


def labelled(label: str, content: Content | str) -> Content:
    return Content.assemble((f"{label:<{LABEL}}", "$muted"), content)


def flow(label: str, parts: list[Content], width: int) -> Content:
    """Parts side by side, as many as fit in a line, under each other behind the label."""
    rows: list[Content] = []
    for part in parts:
        if rows and rows[-1].cell_length + 3 + part.cell_length <= width - LABEL:
            rows[-1] = Content.assemble(rows[-1], "   ", part)
        else:
            rows.append(part)
    lines = [labelled(label if number == 0 else "", row) for number, row in enumerate(rows)]
    return Content("\n").join(lines)


def cut(lines: list[Content], height: int) -> Content:
    """The lines that fit; the last says how many do not."""
    if len(lines) > height > 0:
        lines = [*lines[: height - 1], Content.styled(f"… and {len(lines) - height + 1:,} more", "$muted")]
    return Content("\n").join(lines)
