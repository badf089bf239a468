"""Keys that Textual reads otherwise than the app needs them."""

from __future__ import annotations

from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


def read_alt_digits() -> None:
    """Make ESC 1 … ESC 9 the keys alt+1 … alt+9.

    Textual 8 takes them for the characters that a Mac's option key types (`¡`, `™`, ...). A Mac that types those
    sends the characters themselves; ESC and a digit is alt and the digit on every terminal.
    """
    sequences = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for digit in "123456789":
        sequences.pop(f"\x1b{digit}", None)
