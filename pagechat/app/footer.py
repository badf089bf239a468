"""What can be pressed in each place, for the foot of the screen. It knows commands by their names only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pagechat.app.commands import pretty

Place = Literal["input", "messages", "candidates", "map", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and what it does, in a word."""

    word: str
    command: str = ""
    """The command whose shortest key is shown; it runs when the entry is clicked."""
    keys: str = ""
    """Shown when there is no one command."""


EVERYWHERE = (Entry("Help", "help"), Entry("Quit", "quit"))
FOOT: dict[Place, tuple[Entry, ...]] = {
    "input": (
        Entry("Send", keys="⏎"), Entry("Messages", "messages"), Entry("Memory", "memory"), Entry("New", "chat.new"),
        Entry("Chats", "chat.history"), Entry("Keys", "keys"), *EVERYWHERE,
    ),
    "messages": (
        Entry("Fork", "message.fork"), Entry("Edit", "message.edit"), Entry("Again", "answer.retry"),
        Entry("Many", "answer.several"), Entry("Blocks", "message.blocks"), Entry("Copy", "message.copy"),
        Entry("Facts", "message.facts"), Entry("Delete", "message.delete"), Entry("Help", "help"),
    ),
    "candidates": (
        Entry("Pick", keys="⏎"), Entry("Mark", keys="←→"), Entry("Memory", "memory"), *EVERYWHERE,
    ),
    "map": (
        Entry("Panel", keys="1-7"), Entry("Order", "memory.order"), Entry("Ghost", "memory.ghost"),
        Entry("First", "priority.up"), Entry("Text", "memory.text"), Entry("Freeze", "memory.freeze"),
        Entry("Zoom", "memory.zoom_in"), Entry("Help", "help"),
    ),
    "elsewhere": (Entry("Memory", "memory"), *EVERYWHERE),
}  # fmt: skip


def entries(place: Place, *, streaming: bool, editing: bool) -> tuple[Entry, ...]:
    """Those of a place, with what esc does there: it leaves the place, and stops an answer from the input only."""
    foot = FOOT[place]
    if place == "input":
        word = "No edit" if editing else "Stop" if streaming else ""
        return (foot[0], Entry(word, "leave"), *foot[1:]) if word else foot
    return (Entry("Back", "leave"), *foot)


def key_of(keys: str, place: Place) -> str:
    """The shortest of a command's keys, as it is shown; in the input a letter is only a letter. "": there is none."""
    shown = [pretty(key.strip()).replace("ctrl+", "^") for key in keys.split(",") if key.strip()]
    return min((key for key in shown if place != "input" or len(key) > 1), key=len, default="")


def fitting(found: Sequence[Entry], shown: Callable[[Entry], str], width: int) -> list[tuple[str, Entry]]:
    """(the key as it is shown, the entry) of as many as stand in `width` cells, a space between them; those at the end
    give way first. `shown` tells an entry's key; one that has none is left out."""
    fits: list[tuple[str, Entry]] = []
    room = width
    for entry in found:
        key = shown(entry)
        size = len(key) + len(entry.word) + 2
        if key and size - 1 <= room:
            fits.append((key, entry))
            room -= size
    return fits
