"""Titles of chats in the room there is."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size


def short(title: str, cells: int) -> str:
    """The title in at most so many cells. The marks at its end that make a fork another chat stay: `essay on pa…'`."""
    if cell_len(title) <= cells:
        return title
    name = title.rstrip("'")
    marks = title[len(name) :][: max(0, cells - 2)]
    return set_cell_size(name, max(0, cells - 1 - len(marks))).rstrip(" …") + "…" + marks
