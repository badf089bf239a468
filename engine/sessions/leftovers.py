"""Temporary files of sessions being saved: how they are named, and how those of writers that died are removed.

The front imports this, so it knows no tensor.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from pathlib import Path

_NAME = re.compile(r"[0-9a-f]{64}\.(\d+)(-\d+)?\.tmp")
"""The hash of the session's name, the writer's process id, and (since format 2) a number."""
_numbers = itertools.count()


def temporary(path: Path) -> Path:
    """A name beside `path` that no other save of this or any other process uses."""
    return path.with_suffix(f".{os.getpid()}-{next(_numbers)}.tmp")


def mark(descriptor: int) -> None:
    """Mark an open temporary file as one whose writer lives; the mark ends with the writer."""
    with contextlib.suppress(OSError):  # a file system without locks, where nothing will be swept either
        _lock(descriptor)


def _lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: Path) -> int:
    """Remove what writers that were killed left in `folder`. Returns the bytes freed.

    A file goes when its name is one of ours and its writer is dead: no process holds the lock on it. The lock, unlike
    the process id, is right for another container that shares the folder, and for an id that was given out again. Of
    files without one, which an older pagechat wrote, the process id is looked at. What cannot be looked at stays.
    """
    freed = 0
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            with contextlib.suppress(OSError):
                if _is_stale(entry):
                    size = entry.stat(follow_symlinks=False).st_blocks * 512
                    os.unlink(entry.path)
                    freed += size
    return freed


def _is_stale(entry: os.DirEntry[str]) -> bool:
    found = _NAME.fullmatch(entry.name)
    if not found or not entry.is_file(follow_symlinks=False):
        return False
    if found[2] is None and _lives(int(found[1])):  # written by a version that took no lock
        return False
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _lock(descriptor)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
