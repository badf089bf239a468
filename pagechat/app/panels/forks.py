"""Forks as a tree: who came from whom, the blocks they share, the memory that saves, and where they part."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from engine.blocks.observe.mirror import PoolMirror
from pagechat.app.conversation import Conversation
from pagechat.app.panels import NAME, PaneData, cut
from pagechat.app.panels.figures import newest_table
from pagechat.app.titles import short
from pagechat.app.widgets.tab_bar import owner_color


def content(data: PaneData, width: int, height: int) -> Content:
    mirror = data.view.mirror
    if mirror is None:
        return Content("")
    shared = [chat for chat in data.chats if not chat.blank]
    if not shared:
        return Content.styled("No chats yet. Fork one (F7, then f) and both share its blocks.", "$muted")
    ids = {chat.id for chat in shared}
    lines: list[Content] = []
    for root in [chat for chat in shared if chat.parent not in ids]:
        _add(data, mirror, shared, root, "", "", lines)
    saved = mirror.status().saved
    lines.append(Content.styled(f"sharing saves {saved:,} blocks of {mirror.block_size} tokens", "$muted"))
    return cut([line.truncate(width, ellipsis=True) for line in lines], height)


def _add(
    data: PaneData,
    mirror: PoolMirror,
    chats: Sequence[Conversation],
    chat: Conversation,
    branch: str,
    indent: str,
    lines: list[Content],
) -> None:
    parent = next((one for one in chats if one.id == chat.parent), None)
    letter = data.view.letters.get(chat.id)
    blocks = len(blocks_of(mirror, chat.id))
    words = f"{blocks:,} blocks"
    if parent is not None:
        common = len(blocks_of(mirror, chat.id) & blocks_of(mirror, parent.id))
        words += f", {common:,} shared with {data.view.letters.get(parent.id)}; {parting(parent, chat)}"
    lines.append(
        Content.assemble(
            (branch, "$muted"),
            (letter, f"bold {owner_color(letter)}"),
            f" {short(chat.label, NAME)}  ",
            (words, "$muted"),
        )
    )
    children = [one for one in chats if one.parent == chat.id]
    for number, child in enumerate(children):
        last = number == len(children) - 1
        _add(
            data,
            mirror,
            chats,
            child,
            f"{indent}{'└─ ' if last else '├─ '}",
            f"{indent}{'   ' if last else '│  '}",
            lines,
        )


def blocks_of(mirror: PoolMirror, session: str) -> set[int]:
    """Physical blocks of the session's newest table."""
    table = newest_table(mirror, session)
    return set(table.blocks) if table else set()


def parting(one: Conversation, other: Conversation) -> str:
    """The first message where two chats differ, in words."""
    pairs = zip(one.messages, other.messages, strict=False)
    same = next(
        (index for index, (a, b) in enumerate(pairs) if (a.role, a.content) != (b.role, b.content)),
        min(len(one.messages), len(other.messages)),
    )
    if same == len(one.messages) == len(other.messages):
        return "they say the same so far"
    return f"they part at message {same + 1}"
