"""`pagechat-daemon keys`: who may use the HTTP door. The daemon sees a change at its next request."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.commands.tables import aligned
from pagechat.daemon.http import keys as file
from pagechat.daemon.http.keys import Key, KeysError

_LIMITS = ("max_concurrent", "requests_per_minute", "tokens_per_minute")
"""Fields that an option of 0 sets to "no limit"."""


def keys(path: Path | None, words: Sequence[str], *, as_json: bool, **given: Any) -> int:
    """Exit code. `given`: fields of `Key`, as the options name them; None: not given. Raises CommandError."""
    path = path or file.default_path()
    fields = {
        name: None if name in _LIMITS and value == 0 else value for name, value in given.items() if value is not None
    }
    try:
        match list(words):
            case [] | ["list"]:
                _list(path, as_json)
            case ["add", name]:
                print(file.add(path, name, **fields))
                print(f"pagechat-daemon: this is all that is ever shown of key {name!r}; keep it", file=sys.stderr)
            case ["set", name]:
                if not fields:
                    raise CommandError("keys set NAME: say what is to change, with options", exits.USAGE)
                file.change(path, name, **fields)
                print(f"pagechat-daemon: key {name!r} is changed", file=sys.stderr)
            case ["remove", name]:
                file.remove(path, name)
                print(f"pagechat-daemon: key {name!r} is removed", file=sys.stderr)
            case _:
                raise CommandError("write: keys [list], keys add NAME, keys set NAME, or keys remove NAME", exits.USAGE)
    except KeysError as error:
        raise CommandError(str(error), exits.FAILED) from None
    return exits.OK


def _list(path: Path, as_json: bool) -> None:
    known = file.load(path)
    if as_json:
        public = [{**msgspec.to_builtins(key), "sha256": None, "salt": None} for key in known]
        print(json.dumps([{name: value for name, value in key.items() if value is not None} for key in public]))
    elif known:
        header = ("key", "made", "may", "requests/min", "tokens/min", "pins", "pool", "at a time", "min priority")
        print(aligned(header, [_row(key) for key in known]))
    else:
        print(f"pagechat-daemon: no keys in {path}", file=sys.stderr)


def _row(key: Key) -> list[str]:
    return [
        key.name,
        time.strftime("%Y-%m-%d", time.localtime(key.created)),
        ",".join(key.scopes),
        str(key.requests_per_minute or "no limit"),
        str(key.tokens_per_minute or "no limit"),
        f"{key.pin_share:.0%}" if key.may("pin") else "none",
        f"{key.pool_share:.0%}",
        str(key.max_concurrent or "no limit"),
        str(key.min_priority),
    ]
