"""`pagechat-daemon curve`: which clients of other machines the daemon lets in over TCP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.daemon import curve as file
from pagechat.daemon.curve import CurveError
from pagechat.remote import FILE


def curve(path: Path | None, words: Sequence[str]) -> int:
    """Exit code. Raises CommandError."""
    path = path or file.default_path()
    try:
        match list(words):
            case [] | ["list"]:
                ring = file.load(path)
                for name in ring.clients if ring else ():
                    print(name)
            case ["add", name, url]:
                url = url if "://" in url else f"tcp://{url}"
                print(msgspec.json.format(msgspec.json.encode(file.add(path, name, url))).decode())
                print(
                    f"pagechat-daemon: {name!r} puts this into the file {FILE} (chmod 600) of a folder of its own, and "
                    "uses that as --run-dir; it is shown this once",
                    file=sys.stderr,
                )
            case ["remove", name]:
                file.remove(path, name)
                print(
                    f"pagechat-daemon: {name!r} is let in no more; a connection it has stays until it ends",
                    file=sys.stderr,
                )
            case _:
                raise CommandError("write: curve [list], curve add NAME HOST:PORT, or curve remove NAME", exits.USAGE)
    except CurveError as error:
        raise CommandError(str(error), exits.FAILED) from None
    return exits.OK
