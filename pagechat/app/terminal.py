"""A terminal that may go away while the app draws on it.

Textual writes in a thread, which an error ends; from then on the app's next frames fill its queue, and the app waits in
the middle of one for ever, deaf to SIGHUP. So errors stay here: what is drawn on no terminal is seen by nobody.
"""

from __future__ import annotations

import contextlib
from typing import Any, TextIO

from textual.driver import Driver


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


def lasting(driver: type[Driver]) -> type[Driver]:
    """The driver on such a terminal; as it is, where it writes to none."""

    class Lasting(driver):  # type: ignore[valid-type, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            file: TextIO | None = getattr(self, "_file", None)
            if file is not None:
                self._file = LastingTerminal(file)

    return Lasting
