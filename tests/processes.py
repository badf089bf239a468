"""Which processes came from these tests: each carries MARK in its environment, and so do those it starts."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "PAGECHAT_TEST_SESSION"


def processes_of_the_tests() -> dict[int, str]:
    """pid to command line of the living ones, this process not counted. Empty where there is no /proc."""
    found: dict[int, str] = {}
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended, or is another user's
            continue
        # multiprocessing's own trackers live as long as this process
        if marked and int(folder.name) != os.getpid() and command and "multiprocessing." not in command:
            found[int(folder.name)] = command
    return found
