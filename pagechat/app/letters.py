"""One letter for each owner of blocks. It knows sessions by their names only."""

from __future__ import annotations

from collections.abc import Iterable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_LETTER = "?"


class Letters:
    """One letter for each session: tabs keep theirs; sessions of other clients get one when they first own a block."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._tabs: set[str] = set()

    def open_tab(self, session: str) -> str:
        self._tabs.add(session)
        return self.get(session)

    def close_tab(self, session: str) -> None:
        """The letter stays until another session needs it."""
        self._tabs.discard(session)

    def get(self, session: str) -> str:
        """The session's letter, given now if it has none. `NO_LETTER` when all 26 are in use."""
        letter = self._of.get(session)
        if letter is None:
            taken = set(self._of.values())
            letter = next((free for free in LETTERS if free not in taken), NO_LETTER)
            self._of[session] = letter
        return letter

    @property
    def scarce(self) -> bool:
        """True when somebody has gone without."""
        return NO_LETTER in self._of.values()

    def forget_unused(self, used: Iterable[str]) -> bool:
        """Take back the letters of sessions that have no tab and are not among `used`. False: there are none."""
        keep = self._tabs.union(used)
        if all(session in keep or letter == NO_LETTER for session, letter in self._of.items()):
            return False
        self._of = {session: letter for session, letter in self._of.items() if session in keep and letter != NO_LETTER}
        return True
