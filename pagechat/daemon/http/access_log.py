"""One JSON line for each HTTP request: who, what, how it ended, how long it took. Never its text, and never a key."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec


class AccessLog:
    """Appends to a file that only this user can read."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def write(self, *, method: str, path: str, status: int, seconds: float, key: str, request_id: str) -> None:
        """`status` 0: the client left before there was one. Whole lines, so that a rotation loses none."""
        line = {
            "time": time.time(),
            "method": method,
            "path": path[:256],
            "status": status,
            "seconds": round(seconds, 6),
            "key": key,
            "request_id": request_id,
        }
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        os.close(self._file)
