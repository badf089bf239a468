"""Everything a person can do, said once: the keys, the palette, the slash commands and the help are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from textual.binding import Binding

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

Run = Callable[["MainScreen", str], Awaitable[None] | None]
Place = Literal["anywhere", "messages", "map", "map itself"]
"""Where its keys work: on the whole main screen, while a message is chosen, or on the block map. "map itself": the map
has these keys wherever it is used, and the command only names them."""


@dataclass(frozen=True, slots=True)
class Command:
    id: str
    """Its name in the keymap file."""
    title: str
    help: str
    run: Run
    """Called with the screen, and the words after the slash command."""
    group: str
    keys: str = ""
    """As Textual writes them, the first one shown; none: palette and slash command only."""
    place: Place = "anywhere"
    slash: str = ""
    argument: str = ""
    """What may follow the slash command, in a word."""

    def shown_keys(self, own: Mapping[str, str]) -> str:
        """The keys as the help tells them. `own`: the person's, by command."""
        keys = own.get(self.id, self.keys)
        return ", ".join(pretty(key.strip()) for key in keys.split(",")) if keys else ""

    def bindings(self, prefix: str = "", keys: str = "") -> list[Binding]:
        """One for each key; `keys`: others than its own. Those that write nothing go before what a focused input makes
        of them."""
        return [
            Binding(
                key,
                f"{prefix}command('{self.id}')",
                self.title,
                show=False,
                key_display=pretty(key),
                priority=self.place == "anywhere" and (key.startswith(("ctrl+", "alt+")) or _is_function_key(key)),
                id=self.id,
            )
            for key in (keys or self.keys).split(",")
            if key
        ]


def _is_function_key(key: str) -> bool:
    return key.startswith("f") and key[1:].isdigit()


def pretty(key: str) -> str:
    """A key as people write it."""
    names = {
        "left_square_bracket": "[",
        "right_square_bracket": "]",
        "pageup": "pgup",
        "pagedown": "pgdn",
        "escape": "esc",
        "question_mark": "?",
        "full_stop": ".",
        "comma": ",",
        "plus": "+",
        "minus": "-",
        "less_than_sign": "<",
        "greater_than_sign": ">",
    }
    return "+".join(names.get(part, part) for part in key.split("+"))
