"""Commands on whole chats and their tabs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pagechat.app.chat_settings import PRESETS, ChatSettings
from pagechat.app.commands import Command
from pagechat.app.commands.presets import configure
from pagechat.app.conversation import Conversation
from pagechat.app.screens.dialogs import AskLine, Confirm
from pagechat.app.screens.history import HistoryScreen
from pagechat.app.screens.settings import SettingsScreen
from pagechat.client import ClientError
from pagechat.store import StoreError

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Chats"


async def new(screen: MainScreen, argument: str) -> None:
    screen.tabs.new()
    await screen.switched()
    if argument:
        screen.composer.text = argument


def history(screen: MainScreen, argument: str) -> None:
    screen.run_worker(_history(screen, argument), group="history", exclusive=True)


async def _history(screen: MainScreen, words: str) -> None:
    store = screen.keeper.store
    try:
        await screen.keeper.flush()  # a name that was given a moment ago is in the list
        chats = await screen.keeper.call(store.chats)
        open_ids = {conversation.id for conversation in screen.tabs.conversations}
        choice = await screen.app.push_screen_wait(HistoryScreen(chats, open_ids, screen.keeper, words))
        if choice is None:
            return
        if choice.delete:
            await _delete(screen, choice.chat_id, choice.title)
            return
        conversation = await screen.tabs.open(choice.chat_id)
        await screen.switched()
        if choice.message_id is not None:
            await screen.show_message(conversation, choice.message_id)
    except StoreError as error:
        screen.notify(f"The history cannot be read: {error}", severity="error", markup=False)


def rename(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active
    before = conversation.title

    async def back() -> None:
        conversation.rename(before)

    def renamed(title: str | None) -> None:
        if title:
            conversation.rename(title)
            screen.undo.add("another name for a chat", back)
            screen.show_tabs()

    if argument:
        renamed(argument)
    else:
        screen.app.push_screen(AskLine("Name of this chat", conversation.title), renamed)


def close(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active

    def answered(yes: bool | None) -> None:
        if yes:
            screen.run_worker(close_tab(screen, conversation), group="close")

    if conversation.streaming:
        question = Confirm("Stop the answer and close?", "What is written so far is kept.", "Stop and close", "Stay")
        screen.app.push_screen(question, answered)
    else:
        answered(True)


async def close_tab(screen: MainScreen, conversation: Conversation) -> None:
    """Close a tab such that it can come back. Its blocks become cached: the memory is there for others."""
    if conversation not in screen.tabs.conversations:
        return
    await conversation.stop(screen.client)
    index = screen.tabs.close(conversation)
    if not conversation.blank:

        async def back() -> None:
            screen.tabs.reopen(conversation, index)
            await screen.switched()

        screen.undo.add(f"close of {conversation.label}", back)
    if screen.client is not None:
        with contextlib.suppress(ClientError):  # one that the engine does not know holds nothing
            await screen.client.manage_session("close", conversation.id)
    await screen.switched()


async def delete(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active
    if not conversation.blank:
        await _delete(screen, conversation.id, conversation.label)


async def _delete(screen: MainScreen, chat_id: str, title: str) -> None:
    keeper = screen.keeper
    was_open = screen.tabs.find(chat_id)
    if was_open is not None:
        await close_tab(screen, was_open)
        await keeper.flush()

    async def back() -> None:
        await keeper.call(keeper.store.hide_chat, chat_id, False)
        if was_open is not None:
            await screen.tabs.open(chat_id)
            await screen.switched()

    await keeper.call(keeper.store.hide_chat, chat_id)
    screen.undo.add(f"delete of {title}", back)
    screen.notify(f"Deleted: {title}\nalt+z brings it back, until pagechat is left.", markup=False)


async def move(screen: MainScreen, step: int) -> None:
    screen.tabs.move(step)
    screen.show_tabs()
    await screen.remember_tabs()


async def step(screen: MainScreen, by: int) -> None:
    screen.tabs.choose(screen.tabs.index + by)
    await screen.switched()


async def pin(screen: MainScreen, argument: str) -> None:
    """The engine never takes the blocks of a pinned chat for others."""
    conversation, client = screen.tabs.active, screen.client
    if client is None:
        screen.notify("The engine is not ready yet.", severity="warning", markup=False)
        return
    try:
        reply = await client.manage_session("unpin" if conversation.pinned else "pin", conversation.id)
    except ClientError as error:
        screen.notify(str(error), severity="error", markup=False)
        return
    if reply.ok:
        conversation.pinned = not conversation.pinned
        conversation.changed()
        state = "pinned: its blocks stay in memory" if conversation.pinned else "no longer pinned"
        screen.notify(f"This chat is {state}.", markup=False)
    else:
        screen.notify("This chat holds no blocks yet; pin it after its first answer.", markup=False)


def settings(screen: MainScreen, argument: str) -> None:
    """Without words the dialog; with words one preset, or one parameter and its value."""
    conversation = screen.tabs.active

    def changed(wanted: ChatSettings | None) -> None:
        if wanted is not None:
            configure(screen, conversation, wanted)

    if not argument:
        screen.app.push_screen(SettingsScreen(conversation.settings), changed)
        return
    name, _, value = argument.partition(" ")
    if name in PRESETS and not value:
        changed(PRESETS[name])
        return
    try:
        changed(conversation.settings.changed(name, value))
    except ValueError as error:
        presets = ", ".join(PRESETS)
        screen.notify(f"{error}. Presets: {presets}; /preset lists yours too.", severity="warning", markup=False)


def system(screen: MainScreen, argument: str) -> None:
    if argument:
        settings(screen, f"system {argument}")
    else:
        settings(screen, "")


async def undo(screen: MainScreen, argument: str) -> None:
    try:
        what = await screen.undo.undo()
    except StoreError as error:
        screen.notify(f"Not taken back: {error}", severity="error", markup=False)
        return
    screen.notify(f"Taken back: {what}" if what else "There is nothing to take back.", markup=False)
    await screen.show_active()


COMMANDS = (
    Command("chat.new", "New chat", "Open an empty chat", new, GROUP, "ctrl+n", slash="new"),
    Command(
        "chat.history",
        "Chats",
        "Open or delete a chat of the history; search all that was said",
        history,
        GROUP,
        "ctrl+o,ctrl+f",
        slash="search",
        argument="WORDS",
    ),
    Command(
        "chat.rename",
        "Rename chat",
        "Give this chat another name",
        rename,
        GROUP,
        "f2",
        slash="rename",
        argument="NAME",
    ),
    Command(
        "chat.close",
        "Close chat",
        "Close this tab; the chat stays in the history",
        close,
        GROUP,
        "alt+w",
        slash="close",
    ),
    Command("chat.delete", "Delete chat", "Delete it; can be taken back", delete, GROUP, slash="delete"),
    Command("chat.next", "Next chat", "Go to the tab after this one", lambda s, _: step(s, 1), GROUP, "ctrl+pagedown"),
    Command("chat.previous", "Previous chat", "Go to the tab before", lambda s, _: step(s, -1), GROUP, "ctrl+pageup"),
    Command("chat.left", "Move tab left", "Change the order", lambda s, _: move(s, -1), GROUP, "alt+left"),
    Command("chat.right", "Move tab right", "Change the order", lambda s, _: move(s, 1), GROUP, "alt+right"),
    Command(
        "chat.settings",
        "Settings of this chat",
        "System prompt, temperature and the like; presets",
        settings,
        GROUP,
        "f4",
        slash="set",
        argument="PRESET, or NAME VALUE",
    ),
    Command(
        "chat.system",
        "System prompt",
        "What the model is told before everything else",
        system,
        GROUP,
        slash="system",
        argument="TEXT",
    ),
    Command("chat.pin", "Pin chat", "Keep its blocks in memory, whatever happens; again: not", pin, GROUP, slash="pin"),
    Command("undo", "Undo", "Take the last change back: close, delete, edit, ...", undo, GROUP, "alt+z", slash="undo"),
)
