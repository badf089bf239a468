"""Commands between text and memory: the blocks that hold a message, and the text that a block holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Offset
from textual.selection import Selection
from textual.widget import Widget
from textual.widgets import Static

from pagechat.app import found_text, token_spans
from pagechat.app.boundary import answered
from pagechat.app.client_api import Client
from pagechat.app.commands import Command
from pagechat.app.commands.messages import last_place
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message
from pagechat.app.panels.figures import newest_table
from pagechat.text_safety import sanitize

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen


def blocks_of_message(screen: MainScreen, argument: str) -> None:
    """Mark the blocks on the map that hold the chosen message, else the last one."""
    conversation, index, client = screen.tabs.active, last_place(screen, role=None), screen.client
    if index is None or client is None or screen.view.mirror is None:
        screen.notify("There is no message, or no engine, to look at.", markup=False)
        return
    screen.run_worker(_mark(screen, client, conversation, index), group="places", exclusive=True)


async def _mark(screen: MainScreen, client: Client, conversation: Conversation, index: int) -> None:
    first, end = await answered(token_spans.span_of(client, conversation, index))
    mirror = screen.view.mirror
    if mirror is None:
        return
    table = newest_table(mirror, conversation.id)
    size = mirror.block_size
    blocks = table.blocks[first // size : -(-min(end, table.length) // size)] if table else []
    screen.block_map.mark(blocks)
    if not blocks:
        screen.notify("Its blocks are not in memory now; the next answer brings them back.", markup=False)
        return
    screen.block_map.select(blocks[0])
    screen.to_map()
    shared = sum(mirror.refs[block] > 1 for block in blocks)
    also = f", {shared:,} of them shared" if shared else ""
    count = f"{len(blocks):,} block{'' if len(blocks) == 1 else 's'}"
    screen.notify(
        f"Tokens {first:,} to {end - 1:,}, in {count}{also}: marked on the map; u there ends it.", markup=False
    )


def text_of_block(screen: MainScreen, argument: str) -> None:
    """Select the text in its chat that the block under the cursor holds."""
    found = _owner(screen)
    if found is None or screen.client is None:
        screen.notify("No open chat holds this block.", markup=False)
    else:
        screen.run_worker(_show_text(screen, screen.client, *found), group="places", exclusive=True)


async def _show_text(screen: MainScreen, client: Client, conversation: Conversation, first: int, end: int) -> None:
    messages = list(conversation.messages)
    if not messages:
        screen.notify("The chat has no messages any more: the block holds what was deleted.", markup=False)
        return
    pieces, (index, begin, stop) = await answered(_span(client, conversation, first))
    if messages != conversation.messages or conversation not in screen.tabs.conversations:
        screen.notify("The chat has changed meanwhile. Try it again.", markup=False)
        return
    if conversation is not screen.tabs.active:
        screen.tabs.choose(screen.tabs.conversations.index(conversation))
        await screen.switched()
    screen.set_class(False, "-memory")
    await _select(screen, conversation, index, "".join(pieces[first : min(end, stop)]), "".join(pieces[begin:first]))
    if end > stop and index + 1 < len(messages):  # it ends in the message behind
        await _select(screen, conversation, index + 1, "".join(pieces[stop:end]), "", more=True)


async def _span(client: Client, conversation: Conversation, first: int) -> tuple[list[str], tuple[int, int, int]]:
    """(the chat's tokens, (the message that holds token `first`, its first token, the one behind its last))."""
    pieces = await token_spans.pieces(client, conversation.context())
    index, begin = await _message_at(client, conversation, first)
    return pieces, (index, begin, await token_spans.end_of(client, conversation, index))


def _owner(screen: MainScreen) -> tuple[Conversation, int, int] | None:
    """(an open chat that owns the block under the cursor, the block's first token, the one behind its last)."""
    mirror, block = screen.view.mirror, screen.block_map.selected
    owners = mirror.owners(block) if mirror is not None and block is not None else []
    chats = []
    for seq, index in owners:
        conversation = screen.tabs.find(mirror.tables[seq].session) if mirror else None
        if conversation is not None:
            chats.append((conversation, index))
    if not chats or mirror is None or block is None:
        return None
    conversation, index = next((chat for chat in chats if chat[0] is screen.tabs.active), chats[0])
    return conversation, index * mirror.block_size, index * mirror.block_size + mirror.fill(block)


async def _message_at(client: Client, conversation: Conversation, token: int) -> tuple[int, int]:
    """(index of the message that holds the token, its first token). The system prompt counts to the first one."""
    low, high, begin = 0, len(conversation.messages) - 1, 0
    while low < high:
        middle = (low + high) // 2
        end = await token_spans.end_of(client, conversation, middle)
        if end > token:
            high = middle
        else:
            low, begin = middle + 1, end
    return low, begin


async def _select(
    screen: MainScreen, conversation: Conversation, index: int, text: str, before: str, more: bool = False
) -> None:
    """Select `text` in the message, as a mouse would: ctrl+c copies it, a click lets it go."""
    if index >= len(conversation.messages):
        return
    message: Message = conversation.messages[index]
    screen.transcript.focus()
    await screen.transcript.select(message)
    view = screen.transcript.view_of(message)
    widgets: list[Widget] = [] if view is None else [view, *view.query(Static)]
    shown = [one for one in widgets if isinstance(one, Static) and one.display and not one.has_class("facts")]
    texts = [str(one.visual) for one in shown]
    selections = dict(screen.selections) if more else {}
    for at, first, end in found_text.find(texts, sanitize(text), sanitize(before)):
        (top, left), (bottom, right) = (found_text.line_and_column(texts[at], place) for place in (first, end))
        selections[shown[at]] = Selection.from_offsets(Offset(left, top), Offset(right, bottom))
    screen.selections = selections


COMMANDS = (
    Command(
        "message.blocks", "Blocks of a message", "Mark on the map the blocks that hold it", blocks_of_message,
        "Messages", "b", "messages", "blocks",
    ),
    Command(
        "memory.text", "Text of a block", "Select in the chat what the block under the cursor holds", text_of_block,
        "Memory", "enter", "map", "text",
    ),
)  # fmt: skip
