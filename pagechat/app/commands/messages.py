"""Commands on single messages: the chosen one, or else the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagechat.app import prose
from pagechat.app.boundary import answered
from pagechat.app.client_api import Client
from pagechat.app.commands import Command
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message
from pagechat.app.screens.facts import FactsScreen
from pagechat.app.token_spans import end_of
from pagechat.app.transfer import to_markdown
from pagechat.app.undo import CannotUndo, exchanged

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Messages"


def choose(screen: MainScreen, argument: str) -> None:
    """Into the messages, with a cursor on one."""
    screen.transcript.focus()
    screen.transcript.step_selection(-1)


async def stop(screen: MainScreen, argument: str) -> None:
    """Stop the answer; without one, back to the input."""
    conversation = screen.tabs.active
    if conversation.streaming:
        if not conversation.stopping:
            screen.run_worker(conversation.stop(screen.client), group="stop")
    else:
        screen.to_composer()


async def retry(screen: MainScreen, argument: str) -> None:
    conversation, index = screen.tabs.active, last_place(screen)
    if index is None or not screen.ready_to_ask():
        return
    if conversation.messages[index].role == "user":
        index += 1
    await conversation.stop(screen.client, 0)
    before = list(conversation.messages)
    screen.sender.regenerate(conversation, index)
    record(screen, conversation, "another answer", before)
    await screen.follow()


async def go_on(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active
    last = conversation.messages[-1] if conversation.messages else None
    if last is None or last.role != "assistant" or not last.content or conversation.streaming:
        screen.notify("There is no answer to continue.", markup=False)
    elif conversation.choosing:
        screen.notify("Pick one of the answers first.", markup=False)
    elif screen.ready_to_ask():
        before = list(conversation.messages)
        screen.sender.go_on(conversation)
        record(screen, conversation, "going on with an answer", before)
        await screen.follow()


def edit(screen: MainScreen, argument: str) -> None:
    """The question into the input; sending it goes on from there, and what followed can be taken back."""
    conversation = screen.tabs.active
    index = last_place(screen, role="user")
    if index is None:
        screen.notify("There is no message of yours to edit.", markup=False)
        return
    screen.begin_edit(conversation, conversation.messages[index])


async def fork(screen: MainScreen, argument: str) -> None:
    """The chat up to this message, in a new tab. The engine shares the blocks up to there, and copies what is
    written to."""
    conversation, index = screen.tabs.active, last_place(screen, role=None)
    if index is None:
        screen.notify("There is nothing to fork yet.", markup=False)
        return
    message = conversation.messages[index]
    child = conversation.fork(index if message.role == "user" else index + 1)
    client = screen.client if child.messages else None
    child.preparing = client is not None
    screen.tabs.insert(child)
    await screen.switched()
    if message.role == "user":
        screen.write(message.content)
    if client is not None:
        screen.run_worker(_share(screen, client, conversation, child), group="fork")
    elif child.messages:
        screen.notify("The engine is not ready: the next answer uses what is cached then.", markup=False)


async def _share(screen: MainScreen, client: Client, conversation: Conversation, child: Conversation) -> None:
    """Have the engine share the blocks; what is asked in the child waits for it."""
    try:
        tokens = await answered(end_of(client, child, len(child.messages) - 1))
        reply = await answered(client.manage_session("fork", conversation.id, child.id, tokens))
    finally:
        child.preparing = False
    shared = reply.tokens
    block_size = screen.view.mirror.block_size if screen.view.mirror else 0
    if shared and block_size:
        blocks = -(-shared // block_size)
        screen.notify(f"{shared:,} tokens in {blocks:,} blocks are shared with it, not copied.", markup=False)
    else:
        screen.notify("Its blocks are not in memory now; the next answer uses what is cached.", markup=False)


async def delete(screen: MainScreen, argument: str) -> None:
    conversation, index = screen.tabs.active, last_place(screen, role=None)
    if index is None:
        return
    if conversation.streaming and index >= len(conversation.messages) - 2:
        await conversation.stop(screen.client, 0)
    before = list(conversation.messages)
    conversation.set_messages(before[:index] + before[index + 1 :])
    record(screen, conversation, "delete of a message", before)
    screen.notify("Deleted. alt+z brings it back.", markup=False)
    await screen.show_active()


def copy(screen: MainScreen, argument: str) -> None:
    """`/copy` the message, `/copy code` its code, `/copy chat` everything."""
    conversation = screen.tabs.active
    if argument.strip() == "chat":
        screen.copy("The chat", to_markdown(conversation.title, conversation.messages))
    elif argument.strip() == "code":
        copy_code(screen, "")
    elif (index := last_place(screen)) is not None:
        message = conversation.messages[index]
        screen.copy("The answer" if message.role == "assistant" else "The message", message.content)


def copy_code(screen: MainScreen, argument: str) -> None:
    """The last code block of the answer; again: the one before it."""
    index = last_place(screen)
    blocks = prose.code_blocks(screen.tabs.active.messages[index].content) if index is not None else []
    if not blocks:
        screen.notify("There is no code in it.", markup=False)
        return
    number = screen.next_code_block(len(blocks))
    screen.copy(f"Code block {number + 1} of {len(blocks)}", blocks[number])


def facts(screen: MainScreen, argument: str) -> None:
    conversation, index = screen.tabs.active, last_place(screen)
    if index is not None:
        block_size = screen.view.mirror.block_size if screen.view.mirror else None
        screen.app.push_screen(FactsScreen(conversation, index, screen.client, block_size))


def fold(screen: MainScreen, argument: str) -> None:
    """Show or hide the reasoning before an answer."""
    index = last_place(screen)
    if index is not None:
        screen.transcript.toggle_reasoning(screen.tabs.active.messages[index])


def last_place(screen: MainScreen, role: str | None = "assistant") -> int | None:
    """Place of the chosen message, else of the last one of that role (None: of any)."""
    messages = screen.tabs.active.messages
    chosen = screen.transcript.selected
    if chosen in messages and (role != "user" or chosen.role == "user"):
        return messages.index(chosen)
    places = [index for index, message in enumerate(messages) if role in (None, message.role)]
    return places[-1] if places else None


def record(screen: MainScreen, conversation: Conversation, what: str, before: Sequence[Message]) -> None:
    """What was done to the messages since they were `before` can be taken back, and done again. What comes later
    stays."""
    after = list(conversation.messages)
    old, new = set(before), set(after)
    gone, come = [one for one in before if one not in new], [one for one in after if one not in old]

    async def exchange(out: list[Message], back: list[Message], order: Sequence[Message], doing: str) -> None:
        await bring(screen, conversation)
        if any(one not in conversation.messages for one in out):
            raise CannotUndo(f"{what} cannot be {doing}: another window has changed these messages since.")
        if conversation.answer in out:
            await conversation.stop(screen.client, 0)
        conversation.set_messages(exchanged(conversation.messages, out, back, order))

    screen.undo.add(
        f"{what} in {conversation.label}",
        lambda: exchange(come, gone, before, "taken back"),
        lambda: exchange(gone, come, after, "done again"),
    )


async def bring(screen: MainScreen, conversation: Conversation) -> None:
    """A chat to the front, open or not: what is taken back in it is seen. Raises StoreError."""
    if screen.tabs.active is not conversation:
        await screen.tabs.open(conversation.id)
        await screen.switched()


COMMANDS = (
    Command(
        "messages", "Choose a message", "A cursor on the messages, and keys for each", choose, GROUP, "alt+up,f7"
    ),
    Command(
        "answer.stop", "Stop answer", "Stop it and keep its text; else back to the input", stop, GROUP, "escape",
        slash="stop", footer="Stop",
    ),
    Command(
        "answer.retry", "Answer again", "Another answer instead of this one", retry, GROUP, "r", "messages", "retry"
    ),
    Command(
        "answer.continue", "Continue answer", "Go on where the last answer stopped", go_on, GROUP, "n", "messages",
        "continue",
    ),
    Command(
        "message.edit", "Edit message", "Ask something else there, and go on from it", edit, GROUP, "e", "messages",
        "edit",
    ),
    Command(
        "message.fork", "Fork", "The chat up to this message in a new tab; its blocks are shared", fork, GROUP, "f",
        "messages", "fork",
    ),
    Command("message.delete", "Delete message", "Can be taken back", delete, GROUP, "d,delete", "messages"),
    Command(
        "message.copy", "Copy", "The message, its code, or the whole chat, to the clipboard", copy, GROUP, "c",
        "messages", "copy", "code | chat",
    ),
    Command(
        "message.copy_code", "Copy code", "The last code block; again: the one before", copy_code, GROUP, "y",
        "messages", "code",
    ),
    Command(
        "message.facts", "Facts of a message", "Tokens, times, cache, and why the cache missed", facts, GROUP, "i",
        "messages", "facts",
    ),
    Command(
        "message.reasoning", "Fold reasoning", "Show or hide what was thought before an answer", fold, GROUP, "t",
        "messages", "reasoning",
    ),
)  # fmt: skip
