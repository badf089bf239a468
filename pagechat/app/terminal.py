"""What terminals cannot do, what people do not want of them, and a terminal that may go away while the app draws on it.

Textual writes in a thread, which an error ends; from then on the app's next frames fill its queue, and the app waits in
the middle of one for ever, deaf to SIGHUP. So errors stay here: what is drawn on no terminal is seen by nobody.

And nobody may be told: the kernel sends SIGHUP to the session's leader alone, and one that waits for us, as make does,
never ends to have it sent to the rest. So it is watched for here, and sent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor

FEW_COLORS_THEME = "terminal"
"""For terminals of sixteen colours: those nearest to another theme's may not be readable on each other."""


def wants_mouse() -> bool:
    """False when $PAGECHAT_NO_MOUSE is set: selecting, and panes of a multiplexer, are then the terminal's own."""
    return os.environ.get("PAGECHAT_NO_MOUSE", "") in ("", "0")


def without_colors(filters: Sequence[LineFilter]) -> list[LineFilter]:
    """For NO_COLOR. Textual turns colours into greys, which are colours too (https://no-color.org)."""
    return [*(one for one in filters if not isinstance(one, Monochrome | NoColor)), NoColor()]


class LastingTerminal:
    """A terminal's file, whose loss is no error."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


_HANGUP_POLL_MS = 1000


def watch_for_hangup(fileno: int) -> None:
    """From now on this process gets SIGHUP when the terminal has gone, whoever else is told."""

    def watch() -> None:
        terminal = select.poll()
        terminal.register(fileno, 0)  # a hangup is always reported
        while not (found := terminal.poll(_HANGUP_POLL_MS)):
            pass
        if any(events & select.POLLHUP for _, events in found):
            os.kill(os.getpid(), signal.SIGHUP)

    if os.isatty(fileno):
        threading.Thread(target=watch, name="hangup", daemon=True).start()


def lasting(driver: type[Driver]) -> type[Driver]:
    """The driver on such a terminal; as it is, where it writes to none."""

    class Lasting(driver):  # type: ignore[valid-type, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            file: TextIO | None = getattr(self, "_file", None)
            if file is not None:
                self._file = LastingTerminal(file)

    return Lasting
