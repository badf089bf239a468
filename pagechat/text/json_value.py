"""Where a JSON value ends, in text that goes on behind it."""

from __future__ import annotations

import json
import re
from typing import Any

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_SCALAR_ENDS = re.compile(r"[\s,\]}]")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)
"""Lets a line break stand in a string, which models write."""


class ValueEnd:
    """Finds the end of one value, however its text comes. It counts brackets and knows strings; what is between them
    may be anything."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self._scalar = False

    def feed(self, text: str) -> int | None:
        """Characters of `text` that belong to the value, once its end is known; None: all of them, and more to come."""
        place = 0
        if not self._begun:
            place = len(text) - len(text.lstrip())
            if place == len(text):
                return None
            self._begun, self._scalar = True, text[place] not in '"{['
        if self._scalar:
            end = _SCALAR_ENDS.search(text, place)
            return end.start() if end else None
        while True:
            if self._escaped:
                if place >= len(text):
                    return None
                place, self._escaped = place + 1, False
            sign = (_INSIDE if self._in_string else _OUTSIDE).search(text, place)
            if sign is None:
                return None
            place = sign.end()
            self._take(sign[0])
            if not self._depth and not self._in_string:
                return place

    def _take(self, sign: str) -> None:
        if self._in_string:
            self._escaped = sign == "\\"
            self._in_string = self._escaped
        elif sign == '"':
            self._in_string = True
        else:
            self._depth += 1 if sign in "{[" else -1


def value_at(text: str, start: int) -> tuple[Any, int] | None:
    """(the JSON value that begins at `start`, its end), None where it does not end. Raises ValueError."""
    length = ValueEnd().feed(text[start:])
    if length is None:
        return None
    try:
        return _DECODER.decode(text[start : start + length]), start + length
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
