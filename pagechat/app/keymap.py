"""The user's own keys: keymap.toml beside config.toml, command by command.

    "chat.new" = "ctrl+t"
    "message.fork" = "ctrl+f,f"

The names are those of `pagechat.app.commands`; the help screen lists them beside the keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pagechat import settings
from pagechat.app.commands import Command, pretty


def path() -> Path:
    return settings.default_path().with_name("keymap.toml")


def load(file: Path, known: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """(keys by command, what is wrong with the rest, in words). No file: nothing, and nothing wrong."""
    try:
        with file.open("rb") as stream:
            found = tomllib.load(stream)
    except FileNotFoundError:
        return {}, []
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [f"{file}: {error}"]
    keys: dict[str, str] = {}
    problems = []
    for name, value in found.items():
        if name not in known:
            problems.append(f"{file}: there is no command {name!r}")
        elif not isinstance(value, str) or not value.strip():
            problems.append(f"{file}: {name} needs keys, such as 'ctrl+t' or 'f9,ctrl+y'")
        else:
            keys[name] = ",".join(key.strip() for key in value.split(",") if key.strip())
    return keys, problems


def clashes(commands: Sequence[Command], own: Mapping[str, str]) -> list[str]:
    """The keys that two commands want in the same place, in words; only one of the two can have it."""
    problems = []
    wanted: list[tuple[str, Command]] = []
    for command in commands:
        for key in own.get(command.id, command.keys).split(","):
            for _, other in [one for one in wanted if one[0] == key and _meet(one[1], command)] if key else ():
                told = f"{pretty(key)}: {other.id} and {command.id} both want it; only one of them has it"
                problems.append(f"{told} ({other.title}; {command.title})")
            wanted.append((key, command))
    return problems


def _meet(one: Command, other: Command) -> bool:
    """There is a place where the keys of both work."""
    places = {one.place.removesuffix(" itself"), other.place.removesuffix(" itself")}
    return one is not other and ("anywhere" in places or len(places) == 1)
