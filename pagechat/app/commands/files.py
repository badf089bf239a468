"""Commands that write chats to files and read them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from pagechat.app import transfer
from pagechat.app.commands import Command
from pagechat.app.conversation import Conversation
from pagechat.app.screens.dialogs import AskLine

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Files"


def export(screen: MainScreen, argument: str) -> None:
    conversation = screen.tabs.active
    if not conversation.messages:
        screen.notify("There is nothing to export yet.", markup=False)
        return

    def named(name: str | None) -> None:
        if name:
            screen.run_worker(_write(screen, conversation, name), group="files")

    if argument:
        named(argument)
    else:
        question = "Export to (.md to read, .json with everything, .openai.json: messages alone)"
        screen.app.push_screen(AskLine(question, str(transfer.default_file(conversation.title))), named)


async def _write(screen: MainScreen, conversation: Conversation, name: str) -> None:
    try:
        path = _path(name)
        text = transfer.exported(path, conversation.title, conversation.settings, conversation.messages)
        await asyncio.to_thread(transfer.write_new, path, text)
    except (OSError, ValueError) as error:
        screen.notify(f"Not exported: {error}", severity="error", markup=False)
    else:
        screen.notify(f"Exported to {path}", markup=False)


def import_(screen: MainScreen, argument: str) -> None:
    def named(name: str | None) -> None:
        if name:
            screen.run_worker(_read(screen, name), group="files")

    if argument:
        named(argument)
    else:
        screen.app.push_screen(AskLine("Import a chat from", str(Path.home()) + "/"), named)


async def _read(screen: MainScreen, name: str) -> None:
    try:
        imported = await asyncio.to_thread(transfer.read, _path(name))
    except (OSError, ValueError) as error:
        screen.notify(f"Not imported: {error}", severity="error", markup=False)
        return
    conversation = imported.conversation()
    screen.tabs.insert(conversation)
    await screen.switched()
    screen.notify(f"Imported: {len(conversation.messages):,} messages", markup=False)


def _path(name: str) -> Path:
    """Raises ValueError in words."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise ValueError(f"{name}: there is no such user here") from None


COMMANDS = (
    Command(
        "chat.export",
        "Export chat",
        "To Markdown, JSON or OpenAI messages",
        export,
        GROUP,
        slash="export",
        argument="FILE",
    ),
    Command("chat.import", "Import chat", "From any of these", import_, GROUP, slash="import", argument="FILE"),
)
