"""The user's config.toml: values for options nobody gave on the command line or in the environment.

Flags go before PAGECHAT_* variables, those before config.toml, that before the defaults; click does the choosing,
this module only hands it the file. A key is an option's name, and applies to every command that has the option;
a table named after a command is for that command alone:

    model = "smollm2"
    num-blocks = 2048
    theme = "paper"

    [ask]
    max-tokens = 400
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import platformdirs


class SettingsError(Exception):
    """config.toml cannot be read; the message says where it is wrong."""


def default_path() -> Path:
    """config.toml in the user's configuration directory ($PAGECHAT_CONFIG names another file)."""
    if chosen := os.environ.get("PAGECHAT_CONFIG"):
        return Path(chosen)
    return Path(platformdirs.user_config_dir("pagechat", appauthor=False)) / "config.toml"


def load(path: Path | None = None) -> dict[str, Any]:
    """The file's content; empty when there is none. Raises SettingsError."""
    path = path or default_path()
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None


def defaults(settings: Mapping[str, Any], commands: Mapping[str, Iterable[str]]) -> tuple[dict[str, Any], list[str]]:
    """(click's default_map, the keys that mean nothing). `commands`: the options of each, by their Python names.

    A key may be written with hyphens, as on the command line, or with underscores.
    """
    options = {command: set(names) for command, names in commands.items()}
    result: dict[str, dict[str, Any]] = {command: {} for command in options}
    unknown: list[str] = []
    own: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in settings.items():
        name = key.replace("-", "_")
        if key in options and isinstance(value, Mapping):
            own.append((key, value))
            continue
        takers = [command for command, names in options.items() if name in names]
        if not takers or isinstance(value, Mapping):
            unknown.append(key)
        for command in takers:
            result[command][name] = value
    for command, table in own:  # after the general ones, which they override
        for key, value in table.items():
            name = key.replace("-", "_")
            if name in options[command]:
                result[command][name] = value
            else:
                unknown.append(f"{command}.{key}")
    return result, unknown
