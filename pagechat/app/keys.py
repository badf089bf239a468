"""Keys that Textual reads otherwise than the app needs them."""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


class _Keys(Enum):
    ALT_ENTER = "alt+enter"


def read_alt_keys() -> None:
    """Make ESC 1 … ESC 9 the keys alt+1 … alt+9, and ESC and a carriage return alt+enter.

    Textual 8 takes the digits for the characters that a Mac's option key types (`¡`, `™`, ...), and alt+enter for
    enter. A Mac that types those characters sends them themselves; ESC and a key is alt and the key on every terminal.
    """
    sequences = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for digit in "123456789":
        sequences.pop(f"\x1b{digit}", None)
    sequences["\x1b\r"] = (_Keys.ALT_ENTER,)
