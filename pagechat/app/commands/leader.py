"""A way to every command that is not a key of its own on some terminals: ctrl+g, then a letter.

F1 and F10 are many terminals' own, and so are alt with a digit and ctrl with pgup; macOS types characters for alt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagechat.app.commands import Command
from pagechat.app.screens.leader import LeaderScreen

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

LETTERS = {
    "n": "chat.new",
    "o": "chat.history",
    "r": "chat.rename",
    "w": "chat.close",
    "j": "chat.next",
    "k": "chat.previous",
    "less_than_sign": "chat.left",
    "greater_than_sign": "chat.right",
    "s": "chat.settings",
    "p": "chat.presets",
    "z": "undo",
    "y": "redo",
    "a": "messages",
    "v": "memory",
    "t": "memory.totals",
    "m": "model",
    "c": "reconnect",
    "g": "tour.next",
    "h": "help",
    "q": "quit",
}
"""Names of keys, and of commands."""


def lead(screen: MainScreen, argument: str) -> None:
    from pagechat.app.commands.all import BY_ID  # which has this command too

    async def chosen(found: str | None) -> None:
        if found is None:
            return
        if found.isdigit():
            await screen.action_choose_tab(int(found) - 1)
        else:
            await screen.action_command(found)

    letters = {key: BY_ID[name] for key, name in LETTERS.items() if name in BY_ID}
    screen.app.push_screen(LeaderScreen(letters, len(screen.tabs.conversations)), chosen)


COMMANDS = (
    Command(
        "keys",
        "Keys by letters",
        "Then one letter, for whatever needs a function key or alt",
        lead,
        "pagechat",
        "ctrl+g",
    ),
)
