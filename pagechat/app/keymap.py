"""The user's own keys: keymap.toml beside config.toml, command by command.

    "chat.new" = "ctrl+t"
    "message.fork" = "ctrl+f,f"

The names are those of `pagechat.app.commands`; the help screen lists them under their titles.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from pagechat import settings


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
            keys[name] = value
    return keys, problems
