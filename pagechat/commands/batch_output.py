"""The file that `batch` writes: a line for each request, written whole and flushed.

It may be there already, from a run that was ended; anything else that is there is somebody's file and is left as it
is. So before anything is asked the file is read from its first line to its last:

```
answer        stays, and is not asked again
failure       (no response, or a status that speaks of the daemon) is taken away: it is asked again
half a line   of an answer, as a kill leaves it at the end, is taken away
anything else the file is not ours: nothing is written into it
```
One run at a time: the file is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Any

from pagechat.commands import exits
from pagechat.commands.exits import CommandError

_BEGINNING = b'{"id": "batch_req_'
_OF_THE_DAEMON = frozenset({401, 403, 404, 408, 425, 429})
"""Statuses that speak of the daemon as it is now (its keys, its model, its queue) and not of the request; so do those
from 500 on."""


class Output:
    """Use it in a `with`."""

    def __init__(self, source: Path, target: Path) -> None:
        """Raises CommandError for a file that is not ours to write, and leaves it as it is."""
        self.answered: dict[str, int] = {}
        """Status codes, by custom_id, of what has been answered."""
        self._path = Path(os.path.realpath(target))  # a link stays a link
        self._name = target
        if target.exists() and source.exists() and target.samefile(source):
            raise CommandError(f"{target} is the input itself; choose another file for the answers", exits.USAGE)
        self._file = self._open()
        try:
            kept, all_of_it = self._read()
            if kept != all_of_it:
                self._keep(kept)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def write(self, answer: dict[str, Any]) -> None:
        """Adds a line. Raises CommandError where there is no room; the lines before it stay whole."""
        before = os.fstat(self._file).st_size
        line = json.dumps(answer, ensure_ascii=False).encode() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise CommandError(f"{self._name} cannot be written: {error.strerror}", exits.FAILED) from None
        status = is_answer(answer)
        if status is not None:
            self.answered[answer["custom_id"]] = status

    def _open(self) -> int:
        while True:
            try:
                if self._path.exists() and not stat.S_ISREG(self._path.stat().st_mode):
                    raise CommandError(f"{self._name} is no file that answers could be kept in", exits.USAGE)
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise CommandError(f"{self._name} cannot be written: {error.strerror}", exits.USAGE) from None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                raise CommandError(f"another batch is writing {self._name}", exits.USAGE) from None
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(file), self._path.stat()):
                    return file
            os.close(file)  # another run has put a new file in its place

    def _read(self) -> tuple[bytes, bytes]:
        """(the answers in it, all that is in it). Raises CommandError."""
        content = self._path.read_bytes()
        *lines, rest = content.split(b"\n")
        kept: list[bytes] = []
        for line in lines:
            if not line.strip():
                continue
            if not self._take(line, kept):
                raise self._foreign()
        if rest and not self._take(rest, kept):
            half = rest.startswith(b"{") if kept or any(lines) else rest.startswith(_BEGINNING)
            if not half or _is_json(rest):
                raise self._foreign()
        return b"".join(line + b"\n" for line in kept), content

    def _take(self, line: bytes, kept: list[bytes]) -> bool:
        """False where it is no line of a batch."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict) or not isinstance(found.get("custom_id"), str):
            return False
        if not {"response", "error"} <= found.keys():
            return False
        status = is_answer(found)
        if status is not None:
            self.answered[found["custom_id"]] = status
            kept.append(line)
        return True

    def _foreign(self) -> CommandError:
        return CommandError(f"{self._name} is there and holds no answers of a batch; choose another file", exits.USAGE)

    def _keep(self, content: bytes) -> None:
        """The file holds just this from now on: put in its place whole, so that a kill loses nothing. What is only
        added or taken away at the end is done to the file itself."""
        size, old = len(content), self._path.read_bytes()
        if old.startswith(content):
            os.ftruncate(self._file, size)
        elif content.startswith(old):
            os.write(self._file, content[len(old) :])
        else:
            self._replace(content, old.rfind(b"\n") + 1)

    def _replace(self, content: bytes, whole_lines: int) -> None:
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        try:
            mode = stat.S_IMODE(os.fstat(self._file).st_mode)
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, mode)
        except OSError:  # nothing can be made beside it: the failures stay, and of two lines the later one counts
            os.ftruncate(self._file, whole_lines)
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with open(file, "wb", closefd=False) as whole:
                whole.write(content)
            os.fsync(file)
            beside.replace(self._path)
        except OSError as error:
            os.close(file)
            beside.unlink(missing_ok=True)
            raise CommandError(f"{self._name} cannot be written: {error.strerror}", exits.FAILED) from None
        os.close(self._file)
        self._file = file


def is_answer(line: dict[str, Any]) -> int | None:
    """The status code of a line of the output that need not be asked again; None for one that does."""
    response = line.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    if line.get("error") is not None or type(status) is not int or status >= 500 or status in _OF_THE_DAEMON:
        return None
    return status


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
