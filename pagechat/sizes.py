"""Amounts of memory as people write them: "80GiB" to bytes, bytes to "80 GiB". Knows nothing of what is measured."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}

_BY_LOWER = {unit.lower(): factor for unit, factor in UNITS.items()}
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)


class SizeError(ValueError):
    """Not a size; the message is one line for people."""


def parse_size(text: str) -> int:
    """Bytes, rounded down, of "80GiB", "1.5 GB", "512MiB" or "4096"; upper and lower case alike.

    "80G" is refused: it means 80 GB to some and 80 GiB, 7 % more, to others. Raises SizeError.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SizeError(f"{text[:40]!r} is not a size; write it like 80GiB, 512MiB or 2GB")
    number, unit = match.groups()
    factor = _BY_LOWER.get(unit.lower()) if unit else 1
    if factor is None:
        raise SizeError(f"{text[:40].strip()!r} has no unit known here; use one of {', '.join(UNITS)}")
    return int(Fraction(number) * factor)


def format_size(size: int) -> str:
    """ "26 GiB", "0.78 MiB", "576 B": the largest binary unit that leaves at least 0.5 of it, three digits or so."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size) * 2 >= UNITS[unit]:
            return f"{_digits(size / UNITS[unit])} {unit}"
    return f"{size} B"


def _digits(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
