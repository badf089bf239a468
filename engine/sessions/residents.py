"""Sessions between their turns: chats whose blocks stay in place (resident) for the next turn.

A finished turn leaves its sequence here with all its blocks, the half-filled tail included. The next
turn takes it back and computes only what is new. Under memory pressure the least recently used
session that is not pinned gives its blocks up; their content stays cached until it is evicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.blocks.tables import BlockTables
from engine.requests.sequence import Sequence


@dataclass(slots=True)
class Session:
    """What the engine knows of a chat."""

    name: str
    resident: Sequence | None = None
    """The sequence of its last turn, while its blocks are in place."""
    tokens: list[int] | None = None
    """The tokens of the last turn, by which the engine tells why the next one missed."""
    pinned: bool = False


class UnknownSession(KeyError):
    """No session of this name is known to the engine."""


class Holder(Protocol):
    """Whatever holds blocks for a while beside the sessions, and can let go of them when it must."""

    @property
    def holds_blocks(self) -> bool: ...

    def let_go(self) -> None:
        """Finish, at once, what the blocks are held for."""


class Sessions:
    """The sessions of one engine, least recently used first."""

    def __init__(self, blocks: BlockTables, *, remembered: int = 4096) -> None:
        self._blocks = blocks
        self._remembered = remembered
        self._sessions: dict[str, Session] = {}
        self._residents: dict[str, Session] = {}
        """The sessions with blocks in place, least recently used first."""
        self.holder: Holder | None = None
        """It is asked to let go before any resident is given up."""

    def get(self, name: str) -> Session | None:
        return self._sessions.get(name)

    def names(self) -> list[str]:
        return list(self._sessions)

    def keep(self, sequence: Sequence) -> None:
        """Make a sequence that has ended its session's resident; an older resident is given up."""
        session = self._touch(sequence.session)
        if session.resident is not None:
            self._give_up(session)
        session.resident = sequence
        session.tokens = sequence.tokens
        self._residents.pop(session.name, None)
        self._residents[session.name] = session
        self._forget_old()

    def take(self, name: str) -> Sequence | None:
        """Returns the session's resident sequence, which is then the caller's."""
        session = self._residents.pop(name, None)
        if session is None:
            return None
        sequence, session.resident = session.resident, None
        return sequence

    def reclaim(self) -> bool:
        """Release the least recently used resident that is not pinned. False when there is none."""
        if self.holder is not None and self.holder.holds_blocks:
            self.holder.let_go()
            return True
        session = next((session for session in self._residents.values() if not session.pinned), None)
        if session is None:
            return False
        self._give_up(session)
        return True

    @property
    def reclaimable(self) -> bool:
        """True when `reclaim` would find something."""
        held = self.holder is not None and self.holder.holds_blocks
        return held or any(not session.pinned for session in self._residents.values())

    def pin(self, name: str, pinned: bool) -> None:
        """A pinned session is never reclaimed. Raises UnknownSession."""
        self._known(name).pinned = pinned

    def close(self, name: str) -> None:
        """Forget a session; its blocks become cached. Raises UnknownSession."""
        session = self._known(name)
        del self._sessions[name]
        if session.resident is not None:
            self._give_up(session)

    @property
    def pinned_blocks(self) -> int:
        """Blocks that only a close or unpin can free."""
        residents = (session.resident for session in self._residents.values() if session.pinned)
        return len({block for resident in residents if resident is not None for block in resident.table})

    @property
    def residents(self) -> list[Session]:
        """Sessions whose blocks are in place, next to be reclaimed first."""
        return list(self._residents.values())

    def check(self) -> None:
        """Raise AssertionError when residents and sessions do not agree. For tests and idle moments."""
        with_resident = {name for name, session in self._sessions.items() if session.resident is not None}
        assert with_resident == set(self._residents), "every session with a resident is listed as one that has"
        for name, session in self._residents.items():
            resident = session.resident
            assert session is self._sessions[name], f"session {name!r} is listed twice"
            assert resident is not None
            assert resident.table, f"the resident of {name!r} has blocks"
            assert resident.computed <= resident.known, f"the resident of {name!r} has KV of its own tokens only"

    def _give_up(self, session: Session) -> None:
        assert session.resident is not None
        self._blocks.release(session.resident)
        session.resident = None
        del self._residents[session.name]

    def _known(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise UnknownSession(name)
        return session

    def _touch(self, name: str) -> Session:
        session = self._sessions.pop(name, None) or Session(name)
        self._sessions[name] = session
        return session

    def _forget_old(self) -> None:
        """Forget the oldest sessions that hold no blocks, when too many are remembered."""
        surplus = len(self._sessions) - self._remembered
        for name in [name for name, s in self._sessions.items() if s.resident is None and not s.pinned][
            : max(0, surplus)
        ]:
            del self._sessions[name]
