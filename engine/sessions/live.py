"""Sessions as an engine has them now: those that run or wait beside those that are resident or remembered."""

from __future__ import annotations

from collections.abc import Callable

from engine.blocks.observe.accounting import Accounting
from engine.blocks.tables import BlockTables
from engine.protocol import SamplingParams, SessionInfo
from engine.requests.sequence import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.sessions.residents import Sessions


class LiveSessions:
    """What can be asked of sessions, and done with them, between two steps."""

    def __init__(
        self,
        sessions: Sessions,
        scheduler: Scheduler,
        blocks: BlockTables,
        accounting: Accounting,
        next_sequence_id: Callable[[], int],
    ) -> None:
        self._sessions = sessions
        self._scheduler = scheduler
        self._blocks = blocks
        self._accounting = accounting
        self._next_sequence_id = next_sequence_id

    def fork(self, source: str, target: str, tokens: int | None = None) -> int:
        """Give `target` the blocks of the first `tokens` tokens that `source` has, running or resident; None: of all.

        Returns the tokens shared; 0 when there are none.
        """
        session = self._sessions.get(source)
        parent = session.resident if session else None
        for sequence in self._scheduler.running:
            if sequence.session == source and sequence.group is None:
                parent = sequence
        if parent is None or not parent.table or not self._blocks.shares:
            return 0
        shared = min(parent.computed, parent.known, parent.computed if tokens is None else tokens)
        child = self.new_sequence(target, parent.tokens[:shared], parent.salt)
        self._blocks.fork(parent, child, shared)
        self._accounting.fork(source, target)
        self._sessions.keep(child)
        return child.computed

    def new_sequence(self, name: str, tokens: list[int], salt: bytes) -> Sequence:
        """A sequence of a session that belongs to no request, and has no blocks yet."""
        return Sequence(
            id=self._next_sequence_id(),
            request_id="",
            session=name,
            tokens=list(tokens),
            prompt_len=len(tokens),
            sampling=SamplingParams(max_tokens=1, seed=0),
            salt=salt,
        )

    def infos(self) -> list[SessionInfo]:
        """Every session the engine knows, least recently used first."""
        infos: dict[str, SessionInfo] = {}
        for name in self._sessions.names():
            session = self._sessions.get(name)
            assert session is not None
            resident = session.resident
            infos[name] = SessionInfo(
                session=name,
                state="resident" if resident else "remembered",
                tokens=resident.computed if resident else len(session.tokens or ()),
                blocks=len(resident.table) if resident else 0,
                pinned=session.pinned,
            )
        for sequence in [*self._scheduler.waiting, *self._scheduler.running]:
            known = infos.pop(sequence.session, None)
            infos[sequence.session] = SessionInfo(
                session=sequence.session,
                state="running" if sequence.table else "waiting",
                tokens=len(sequence.tokens),
                blocks=len(sequence.table),
                pinned=known.pinned if known else False,
                priority=sequence.priority,
            )
        return list(infos.values())
