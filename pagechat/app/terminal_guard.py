"""A terminal gets back what it was, however the app on it ends.

Whoever is killed (SIGKILL, SIGSEGV, SIGABRT from inside a library) restores nothing: the mouse would go on reporting
itself into the shell, which could not be seen on the alternate screen. So a second process, a fork that does nothing
but wait, has the terminal's old settings; it is told when the app takes the terminal and gives it back, and acts when
the app ends in between.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from typing import Any

RESET = "".join(
    f"\x1b[{sequence}"
    for sequence in (
        "<u",  # the kitty keyboard protocol
        "?1000l", "?1003l", "?1006l", "?1015l", "?1016l",  # the mouse
        "?1004l",  # reports of the focus
        "?2004l",  # bracketed paste
        "?2026l",  # a frame that did not end
        "?2048l",  # reports of the size
        "?7h",  # lines wrap
        "0m",
        "?1049l",  # the screen of before
        "?25h",  # the cursor
    )
)  # fmt: skip
"""Takes back all that Textual asks of a terminal."""
PATIENCE_MS = 500
"""A terminal that takes nothing for so long (ctrl+s) is left as it is."""


def attributes(fileno: int) -> list[Any] | None:
    """The settings of the terminal's line; None: it is no terminal."""
    try:
        return termios.tcgetattr(fileno)
    except termios.error:
        return None


def restore(fileno: int, before: list[Any] | None) -> None:
    """Make the terminal what it was. It may have gone."""
    waiting = select.poll()
    waiting.register(fileno, select.POLLOUT)
    with contextlib.suppress(OSError):
        if waiting.poll(PATIENCE_MS):
            os.write(fileno, RESET.encode())
    if before is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fileno, termios.TCSANOW, before)


class Guard:
    """The second process. It ends with this one, or before."""

    TAKEN, FREE = b"t", b"f"

    def __init__(self, fileno: int) -> None:
        """Started while no thread of this process holds a lock that the fork would inherit. Raises OSError."""
        before = attributes(fileno)
        ends, self._told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _wait(ends, fileno, before)
            finally:
                os._exit(0)
        os.close(ends)

    def tell(self, state: bytes) -> None:
        """The terminal is taken, or free again."""
        with contextlib.suppress(OSError):
            os.write(self._told, state)


def _wait(ends: int, fileno: int, before: list[Any] | None) -> None:
    """Until the app has ended. In the fork."""
    os.setsid()  # what is sent to the app's group, or by its terminal, is not for this process
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGTTOU, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    for name in os.listdir("/dev/fd"):  # others wait for the ends of pipes that the app holds
        if int(name) not in (ends, fileno):
            with contextlib.suppress(OSError):
                os.close(int(name))
    state = Guard.FREE
    while told := os.read(ends, 64):
        state = told[-1:]
    if state == Guard.TAKEN:
        restore(fileno, before)
