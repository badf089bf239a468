"""Which grammar is compiled next: fair between tenants, small ones first, and no more waiting than can be served.

A tenant's turn comes when it has used the least time of all that wait; one that comes back after a pause has no claim
on the time it did not use. Small grammars take milliseconds, large ones up to some seconds (trial.py).
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from engine.protocol import Grammar
from engine.sampling.grammar.matcher import Matcher
from engine.sampling.grammar.trial import Trial, is_large

MOST_SMALL, MOST_LARGE = 256, 8
"""Grammars of one tenant that may wait."""
MOST_SMALL_IN_ALL, MOST_LARGE_IN_ALL = 1024, 32


class Compiling(Future[Matcher]):
    """One grammar on its way, for all requests that bring it."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__()
        self.grammar = grammar
        self.trial = Trial()
        self.waiters = 0
        """Requests that wait for it."""
        self.tenants: set[str] = set()
        """Theirs."""
        self.began: float | None = None
        """When its own compilation began (time.monotonic)."""


@dataclass(slots=True)
class _Line:
    """What waits of one tenant."""

    used_s: float
    """Its share of compile time so far, on a scale that all tenants share."""
    small: deque[Compiling] = field(default_factory=deque)
    large: deque[Compiling] = field(default_factory=deque)


class FairQueue:
    """Not thread safe: whoever owns it has a lock."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._floor = 0.0
        """The time used by the tenant that was served last, when it was."""

    def put(self, tenant: str, job: Compiling) -> bool:
        """False when too many wait already."""
        large = is_large(job.grammar)
        line = self._lines.get(tenant) or _Line(self._floor)
        own, most = (line.large, MOST_LARGE) if large else (line.small, MOST_SMALL)
        all_, most_in_all = self._waiting(large), MOST_LARGE_IN_ALL if large else MOST_SMALL_IN_ALL
        if len(own) >= most or all_ >= most_in_all:
            return False
        line.used_s = max(line.used_s, self._floor) if not (line.small or line.large) else line.used_s
        self._lines[tenant] = line
        own.append(job)
        job.tenants.add(tenant)
        return True

    def take(self, *, only_small: bool) -> Compiling | None:
        """The next one; None when there is none."""
        waiting = [line for line in self._lines.values() if line.small or (line.large and not only_small)]
        if not waiting:
            return None
        line = min(waiting, key=lambda one: one.used_s)
        self._floor = max(self._floor, line.used_s)
        job = (line.small or line.large)[0]
        self.remove(job)
        return job

    def remove(self, job: Compiling) -> None:
        """From the lines of all its tenants."""
        for tenant in job.tenants:
            line = self._lines.get(tenant)
            for waiting in (line.small, line.large) if line else ():
                if job in waiting:
                    waiting.remove(job)

    def charge(self, job: Compiling, seconds: float) -> None:
        """What compiling it took, or has taken so far, is shared by those who wanted it."""
        for tenant in job.tenants:
            if line := self._lines.get(tenant):
                line.used_s += seconds / len(job.tenants)
        idle = [t for t, line in self._lines.items() if not (line.small or line.large) and line.used_s <= self._floor]
        for tenant in idle:
            del self._lines[tenant]

    def _waiting(self, large: bool) -> int:
        return sum(len(line.large if large else line.small) for line in self._lines.values())
