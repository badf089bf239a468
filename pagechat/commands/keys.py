"""`pagechat-daemon keys`: who may use the HTTP door. The daemon sees a change at its next request."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.commands.tables import aligned
from pagechat.daemon.http import keys as file
from pagechat.daemon.http.keys import KeysError


def keys(
    path: Path | None, words: Sequence[str], *, max_concurrent: int | None, min_priority: int, as_json: bool
) -> int:
    """Exit code. Raises CommandError."""
    path = path or file.default_path()
    try:
        match list(words):
            case [] | ["list"]:
                _list(path, as_json)
            case ["add", name]:
                print(file.add(path, name, max_concurrent, min_priority))
                print(f"pagechat-daemon: this is all that is ever shown of key {name!r}; keep it", file=sys.stderr)
            case ["remove", name]:
                file.remove(path, name)
                print(f"pagechat-daemon: key {name!r} is removed", file=sys.stderr)
            case _:
                raise CommandError("write: keys [list], keys add NAME, or keys remove NAME", exits.USAGE)
    except KeysError as error:
        raise CommandError(str(error), exits.FAILED) from None
    return exits.OK


def _list(path: Path, as_json: bool) -> None:
    known = file.load(path)
    if as_json:
        public = [{**msgspec.to_builtins(key), "sha256": None, "salt": None} for key in known]
        print(json.dumps([{name: value for name, value in key.items() if value is not None} for key in public]))
    elif known:
        rows = [
            [
                key.name,
                time.strftime("%Y-%m-%d", time.localtime(key.created)),
                str(key.max_concurrent or "no limit"),
                str(key.min_priority),
            ]
            for key in known
        ]
        print(aligned(("key", "made", "at a time", "min priority"), rows))
    else:
        print(f"pagechat-daemon: no keys in {path}", file=sys.stderr)
