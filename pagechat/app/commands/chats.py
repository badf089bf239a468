"""Commands on whole chats and their tabs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagechat.app.boundary import answered as patient
from pagechat.app.chat_settings import PRESETS, ChatSettings
from pagechat.app.client_api import Client
from pagechat.app.commands import Command
from pagechat.app.commands.messages import bring
from pagechat.app.commands.presets import configure
from pagechat.app.conversation import Conversation
from pagechat.app.presets import PresetError
from pagechat.app.screens.dialogs import AskLine, Confirm
from pagechat.app.screens.history import HistoryScreen
from pagechat.app.screens.settings import SettingsScreen
from pagechat.app.undo import CannotUndo
from pagechat.client import ClientError
from pagechat.store import StoreError

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Chats"


async def new(screen: MainScreen, argument: str) -> None:
    screen.tabs.new()
    await screen.switched()
    if argument:
        screen.write(argument)


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
        if conversation.elsewhere:
            screen.notify("Open in another window too (= in its tab): what is said there appears here.", markup=False)
        if choice.message_id is not None:
            await screen.show_message(conversation, choice.message_id)
    except StoreError as error:
        screen.notify(f"The history cannot be read: {error}", severity="error", markup=False)


def rename(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active
    before = conversation.title

    async def named(title: str, expected: str) -> None:
        await bring(screen, conversation)
        if conversation.title != expected:
            raise CannotUndo("The chat has got another name since.")
        conversation.rename(title)
        screen.show_tabs()

    def renamed(title: str | None) -> None:
        if title:
            conversation.rename(title)
            after = conversation.title
            screen.undo.add(
                f"another name for {before or 'a new chat'}", lambda: named(before, after), lambda: named(after, before)
            )
            screen.show_tabs()

    if argument:
        renamed(argument)
    else:
        screen.app.push_screen(AskLine("Name of this chat", conversation.title), renamed)


async def close(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active

    def answered(yes: bool | None) -> None:
        if yes:
            screen.run_worker(close_tab(screen, conversation), group="close")

    if conversation.streaming:
        question = Confirm("Stop the answer and close?", "What is written so far is kept.", "Stop and close", "Stay")
        screen.app.push_screen(question, answered)
    else:
        await close_tab(screen, conversation)


async def close_tab(screen: MainScreen, conversation: Conversation) -> None:
    """Close a tab such that it can come back. Its blocks become cached: the memory is there for others."""
    index = await _close(screen, conversation)
    if index is None or conversation.blank:
        return

    async def back() -> None:
        screen.tabs.reopen(conversation, index)
        await screen.switched()

    async def again() -> None:
        await _close(screen, conversation)

    screen.undo.add(
        f"close of {conversation.label}", back, again, lambda: screen.tabs.find(conversation.id) is not None
    )


async def _close(screen: MainScreen, conversation: Conversation) -> int | None:
    """Where the tab was; None when it is not open."""
    if conversation not in screen.tabs.conversations:
        return None
    await conversation.stop(screen.client, 0)
    index = screen.tabs.close(conversation)
    conversation.pinned = False
    client = screen.client
    if client is not None and not conversation.elsewhere:
        screen.run_worker(_release(client, conversation.id), group="release")
    await screen.switched()
    return index


async def _release(client: Client, session: str) -> None:
    with contextlib.suppress(ClientError):  # one that the engine does not know holds nothing
        await patient(client.manage_session("close", session))


def delete(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active
    if not conversation.blank:
        screen.run_worker(_delete(screen, conversation.id, conversation.label), group="delete")


async def _delete(screen: MainScreen, chat_id: str, title: str) -> None:
    keeper, store = screen.keeper, screen.keeper.store
    was_open = screen.tabs.find(chat_id)
    index: int | None = None

    async def hide() -> None:
        nonlocal index
        if was_open is not None and was_open in screen.tabs.conversations:
            await was_open.stop(screen.client, 0)
            await keeper.flush()  # all of it can come back then
            if keeper.trouble:
                raise StoreError(keeper.trouble)
        await keeper.call(store.hide_chat, chat_id)
        if was_open is not None:
            index = await _close(screen, was_open)

    async def back() -> None:
        if not await keeper.call(store.hide_chat, chat_id, False):
            raise CannotUndo(f"{title} is gone for good.")
        if was_open is not None:
            screen.tabs.reopen(was_open, index or 0)
            await screen.switched()

    try:
        await hide()
    except StoreError as error:
        screen.notify(f"Not deleted: {error}", severity="error", markup=False)
        return
    screen.undo.add(f"delete of {title}", back, hide)
    screen.notify(f"Deleted: {title}\nalt+z brings it back, until pagechat is left.", markup=False)


async def move(screen: MainScreen, step: int) -> None:
    screen.tabs.move(step)
    screen.show_tabs()
    screen.remember_tabs()


async def step(screen: MainScreen, by: int) -> None:
    screen.tabs.choose(screen.tabs.index + by)
    await screen.switched()


def pin(screen: MainScreen, argument: str) -> None:
    """The engine never takes the blocks of a pinned chat for others."""
    if screen.client is None:
        screen.notify("The engine is not ready yet.", severity="warning", markup=False)
    else:
        screen.run_worker(_pin(screen, screen.tabs.active, screen.client), group="pin")


async def _pin(screen: MainScreen, conversation: Conversation, client: Client) -> None:
    reply = await patient(client.manage_session("unpin" if conversation.pinned else "pin", conversation.id))
    if reply.ok:
        conversation.pinned = not conversation.pinned
        conversation.changed()
        state = "pinned: its blocks stay in memory" if conversation.pinned else "no longer pinned"
        screen.notify(f"This chat is {state}.", markup=False)
    elif conversation.pinned:  # by another engine, which has ended
        conversation.pinned = False
        conversation.changed()
        screen.notify("This chat is no longer pinned: the engine holds no blocks of it.", markup=False)
    else:
        screen.notify("This chat holds no blocks yet; pin it after its first answer.", markup=False)


async def learn_pins(client: Client, conversations: Sequence[Conversation]) -> None:
    """Which chats are pinned is the engine's to say: it may be another one now, or another window may have asked."""
    try:
        pinned = {one.session for one in await patient(client.sessions()) if one.pinned}
    except ClientError:
        return
    for conversation in conversations:
        if conversation.pinned != (conversation.id in pinned):
            conversation.pinned = not conversation.pinned
            conversation.changed()


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


def undo(screen: MainScreen, argument: str) -> None:
    screen.run_worker(_undo(screen), group="undo")


async def _undo(screen: MainScreen) -> None:
    try:
        what = await screen.undo.undo()
    except (StoreError, PresetError, CannotUndo) as error:
        screen.notify(f"Not taken back: {error}", severity="error", markup=False)
    else:
        told = f"Taken back: {what}\nalt+y does it again." if what else "There is nothing to take back."
        screen.notify(told, markup=False)
    await screen.show_active()


def redo(screen: MainScreen, argument: str) -> None:
    screen.run_worker(_redo(screen), group="undo")


async def _redo(screen: MainScreen) -> None:
    try:
        what = await screen.undo.redo()
    except (StoreError, PresetError, CannotUndo) as error:
        screen.notify(f"Not done again: {error}", severity="error", markup=False)
    else:
        told = f"Done again: {what}\nalt+z takes it back." if what else "There is nothing to do again."
        screen.notify(told, markup=False)
    await screen.show_active()


COMMANDS = (
    Command("chat.new", "New chat", "Open an empty chat", new, GROUP, "ctrl+n", slash="new", footer="New"),
    Command(
        "chat.history",
        "Chats",
        "Open or delete a chat of the history; search all that was said",
        history,
        GROUP,
        "ctrl+o,ctrl+f",
        slash="search",
        argument="WORDS",
        footer="Chats",
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
    Command("redo", "Redo", "Do again what was taken back", redo, GROUP, "alt+y,alt+Z", slash="redo"),
)
