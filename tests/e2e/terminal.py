"""A real pseudo-terminal with a real terminal emulator on it: what a person would see of an installed command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

COLUMNS, ROWS = 120, 40


def command(name: str) -> str:
    """Path of an installed console script of this environment."""
    path = Path(sys.executable).parent / name
    assert path.exists(), f"{name} is not installed beside {sys.executable}: run the tests with `make test`"
    return str(path)


class Terminal:
    """A command running on a terminal of COLUMNS x ROWS. Used as a context manager; leaving it kills the command."""

    def __init__(self, *arguments: str) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        self._child = pexpect.spawn(
            arguments[0], list(arguments[1:]), env=environment, dimensions=(ROWS, COLUMNS), timeout=None
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close(force=True)

    @property
    def lines(self) -> list[str]:
        """The rows of the screen as they stand."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        """Key presses, control characters included."""
        self._child.send(keys)

    def wait_until(self, predicate: Callable[[], bool], what: str, timeout: float = 60) -> None:
        """Reads what the command draws until `predicate` holds; fails with the screen when it does not in time."""
        deadline = time.monotonic() + timeout
        while not predicate():
            assert time.monotonic() < deadline, f"no {what} after {timeout} s; the screen:\n{self.text}"
            self._draw()

    def wait_for_end(self, timeout: float = 20) -> int:
        """The exit code of the command, once it has ended by itself."""
        deadline = time.monotonic() + timeout
        while self._child.isalive():
            assert time.monotonic() < deadline, f"still running after {timeout} s; the screen:\n{self.text}"
            self._draw()
        assert self._child.exitstatus is not None, f"ended by signal {self._child.signalstatus}"
        return self._child.exitstatus

    def _draw(self) -> None:
        try:
            self._stream.feed(self._child.read_nonblocking(65536, timeout=0.1))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            time.sleep(0.05)  # ended, and not yet reaped
