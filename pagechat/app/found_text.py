"""Where a piece of the model's text stands in what is shown of it. Markdown's marks are not shown, lines are joined
and split: letters and digits alone are compared, and those stand in the same order in both."""

from __future__ import annotations

from collections.abc import Sequence


def find(shown: Sequence[str], text: str, before: str) -> list[tuple[int, int, int]]:
    """(index in `shown`, first character, character behind the last) of each part of `text` that stands there.

    `shown`: what the widgets of a message show, in order. `before`: what the message says before `text`, so that of
    several equal places the right one is found. Empty when the text is not shown as it is.
    """
    letters, places = _stream(shown)
    wanted, expected = "".join(filter(str.isalnum, text)), sum(map(str.isalnum, before))
    found = _all_places(letters, wanted) if wanted else []
    if not found:
        return []
    first = min(found, key=lambda place: abs(place - expected))
    parts: list[tuple[int, int, int]] = []
    for index, at in places[first : first + len(wanted)]:
        if parts and parts[-1][0] == index:
            parts[-1] = (index, parts[-1][1], at + 1)
        else:
            parts.append((index, at, at + 1))
    return parts


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Where character `at` stands, lines counted from 0."""
    line = text.count("\n", 0, at)
    return line, at - (text.rfind("\n", 0, at) + 1)


def _stream(shown: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    places = [(index, at) for index, text in enumerate(shown) for at, letter in enumerate(text) if letter.isalnum()]
    return "".join(shown[index][at] for index, at in places), places


def _all_places(letters: str, wanted: str) -> list[int]:
    places, at = [], letters.find(wanted)
    while at >= 0:
        places.append(at)
        at = letters.find(wanted, at + 1)
    return places
