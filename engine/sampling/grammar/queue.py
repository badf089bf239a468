"""Requests whose grammar is being compiled: they wait here, and the steps of the others go on."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from engine.protocol import AddRequest, Grammar
from engine.sampling.grammar.errors import GrammarError

if TYPE_CHECKING:
    from engine.sampling.grammar.compile import GrammarCompiler
    from engine.sampling.grammar.jobs import Compiling
    from engine.sampling.grammar.matcher import Matcher

COMPILE_SECONDS = 10.0
"""A grammar whose own compilation takes longer is refused. How many may wait for theirs to begin is bounded by
jobs.py, and for how long by that and this."""


@dataclass(slots=True)
class _Waiting:
    message: AddRequest
    compiling: Compiling

    def outcome(self) -> Matcher | GrammarError | None:
        """None: not yet."""
        if self.compiling.done():
            error = self.compiling.exception()
            if error is None or isinstance(error, GrammarError):
                return error or self.compiling.result()
            return GrammarError(f"compiling the grammar failed: {type(error).__name__}: {error}")
        if self.compiling.began is not None and time.monotonic() - self.compiling.began > COMPILE_SECONDS:
            return GrammarError(f"the grammar was not compiled within {COMPILE_SECONDS:g} seconds; simplify it")
        return None


class GrammarQueue:
    """In the order they came."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self.compiler = compiler
        """None: there is no model whose text a grammar could describe."""
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, message: AddRequest, grammar: Grammar) -> None:
        """Begin to compile a request's grammar, unless that has been done before."""
        assert self.compiler is not None
        self._waiting[message.request_id] = _Waiting(message, self.compiler.compile(grammar, message.tenant))

    def set_priority(self, request_id: str, priority: int) -> None:
        """Nothing when it does not wait here."""
        if waiting := self._waiting.get(request_id):
            waiting.message = msgspec.structs.replace(waiting.message, priority=priority)

    def remove(self, request_id: str) -> AddRequest | None:
        """A request that is wanted no more; None when it does not wait here."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        self._release(waiting)
        return waiting.message

    def take(self, patience: float) -> list[tuple[AddRequest, Matcher | GrammarError]]:
        """Requests that need wait no longer, and their matchers or why they have none.

        Waits up to `patience` seconds for one.
        """
        if not self._waiting:
            return []
        wait([waiting.compiling for waiting in self._waiting.values()], patience, FIRST_COMPLETED)
        taken = []
        for waiting in list(self._waiting.values()):
            outcome = waiting.outcome()
            if outcome is not None:
                del self._waiting[waiting.message.request_id]
                self._release(waiting)
                taken.append((waiting.message, outcome))
        return taken

    def _release(self, waiting: _Waiting) -> None:
        assert self.compiler is not None
        self.compiler.release(waiting.compiling)
