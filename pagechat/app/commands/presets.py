"""Commands on presets: settings of chats under names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagechat.app.chat_settings import ChatSettings
from pagechat.app.commands import Command
from pagechat.app.commands.messages import bring
from pagechat.app.conversation import Conversation
from pagechat.app.presets import PresetError, Presets
from pagechat.app.screens.dialogs import AskLine
from pagechat.app.screens.presets import PresetsScreen, Wish
from pagechat.app.undo import CannotUndo

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Chats"


def presets(screen: MainScreen, argument: str) -> None:
    """`/preset` lists them, `/preset NAME` takes one, `/preset save NAME` and `/preset delete NAME`."""
    word, _, rest = argument.strip().partition(" ")
    if not argument:
        _list(screen)
    elif word in ("save", "delete") and rest.strip():
        _do(screen, Wish("save" if word == "save" else "delete", rest.strip()))
    else:
        _do(screen, Wish("apply", argument.strip()))


def _list(screen: MainScreen) -> None:
    def chosen(wish: Wish | None) -> None:
        if wish is not None:
            _do(screen, wish)

    try:
        found = Presets().all()
    except PresetError as error:
        screen.notify(str(error), severity="error", markup=False)
        return
    screen.app.push_screen(PresetsScreen(found, screen.tabs.active.settings), chosen)


def _do(screen: MainScreen, wish: Wish) -> None:
    try:
        if wish.what == "apply":
            _apply(screen, wish.name)
        elif wish.what == "delete":
            _delete(screen, wish.name)
        elif wish.name:
            name = Presets().save(wish.name, screen.tabs.active.settings)
            what = screen.tabs.active.settings.summary or "the model's own settings"
            screen.notify(f"Saved as {name}: {what}. F9 lists all.", markup=False)
        else:
            screen.app.push_screen(AskLine("Save the settings of this chat as", ""), lambda name: _named(screen, name))
    except PresetError as error:
        screen.notify(str(error), severity="error", markup=False)


def _named(screen: MainScreen, name: str | None) -> None:
    if name:
        _do(screen, Wish("save", name))


def _apply(screen: MainScreen, name: str) -> None:
    found = Presets().all()
    if name not in found:
        raise PresetError(f"there is no preset {name}; there are {', '.join(found)}. /preset save NAME makes one")
    configure(screen, screen.tabs.active, found[name])


def configure(screen: MainScreen, conversation: Conversation, wanted: ChatSettings) -> None:
    """Other settings for a chat, from its next answer on; can be taken back."""
    before = conversation.settings

    async def configured(settings: ChatSettings, expected: ChatSettings) -> None:
        await bring(screen, conversation)
        if conversation.settings != expected:
            raise CannotUndo("The settings of this chat have been changed since, in another window.")
        conversation.configure(settings)

    if wanted != before:
        conversation.configure(wanted)
        screen.undo.add(
            f"settings of {conversation.label}", lambda: configured(before, wanted), lambda: configured(wanted, before)
        )
    screen.notify(conversation.settings.summary or "The model's own settings.", markup=False)


def _delete(screen: MainScreen, name: str) -> None:
    gone = Presets().delete(name)

    async def back() -> None:
        if name in Presets().own():
            raise CannotUndo(f"There is another preset {name} by now.")
        Presets().save(name, gone)

    async def again() -> None:
        Presets().delete(name)

    screen.undo.add(f"delete of the preset {name}", back, again)
    screen.notify(f"Deleted: {name}. alt+z brings it back.", markup=False)


COMMANDS = (
    Command(
        "chat.presets", "Presets", "Settings under names: take one for this chat, save, delete", presets, GROUP, "f9",
        slash="preset", argument="NAME | save NAME | delete NAME",
    ),
)  # fmt: skip
