"""The numbered log of pool changes. The pool writes it and knows nothing of who reads."""

from __future__ import annotations

from engine.protocol import EventKind, PoolEvent


class EventLog:
    """Events since the last `drain`, numbered without gaps from 0 for the life of the pool."""

    __slots__ = ("_first", "_pending")

    def __init__(self) -> None:
        self._first = 0
        self._pending: list[PoolEvent] = []

    def add(
        self, kind: EventKind, block: int, seq: int = -1, session: str = "", index: int = -1, source: int = -1
    ) -> None:
        self._pending.append(PoolEvent(kind, block, seq, session, index, source))

    def add_blocks(self, kind: EventKind, blocks: list[int], seq: int, session: str, first: int = 0) -> None:
        """The same event for each block of a table from index `first` on; last to first for `release`."""
        events = [PoolEvent(kind, block, seq, session, index) for index, block in enumerate(blocks, first)]
        self._pending += reversed(events) if kind == "release" else events

    @property
    def next_event(self) -> int:
        """Number the next event will get."""
        return self._first + len(self._pending)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def drain(self) -> tuple[int, list[PoolEvent]]:
        """(number of the first event, the events), and start again behind them."""
        first, events = self._first, self._pending
        self._first += len(events)
        self._pending = []
        return first, events


class SilentLog(EventLog):
    """For simulations that nobody watches: counts nothing and keeps nothing."""

    __slots__ = ()

    def add(
        self, kind: EventKind, block: int, seq: int = -1, session: str = "", index: int = -1, source: int = -1
    ) -> None:
        pass

    def add_blocks(self, kind: EventKind, blocks: list[int], seq: int, session: str, first: int = 0) -> None:
        pass
