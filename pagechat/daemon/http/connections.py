"""How many connections there may be, and how long one may do nothing.

```
accepted -> waits for a request -> its body comes -> is answered -> waits for the next
            \\__ may make room for a new connection __/   never does
```
A new connection always gets a place while one of the others is waiting: the one that has waited longest makes room.
So those who open connections and say nothing keep nobody out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pagechat.seldom import Seldom

log = logging.getLogger(__name__)

_RESERVED_FILES = 192
"""For everything else that the daemon opens: ZeroMQ clients, the engine's pipes, log files."""
_MOST = 8192
_MOST_FILES = 65_536
_SWEEP_S = 1.0
_PROGRESS = 16 * 2**10
"""Bytes that a slow reader or writer must have moved in the time it has, to get as much again."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    request_s: float = 20.0
    """From a connection's beginning, or a request's first byte, to the end of its head."""
    body_s: float = 20.0
    """For each further piece of a body."""
    reading_s: float = 60.0
    """For a client to read each further piece of what was sent to it."""


class Connection(Protocol):
    """What is known of one."""

    address: str

    @property
    def waiting(self) -> bool:
        """Nothing is being answered on it."""
        ...

    def overdue(self, now: float, patience: Patience) -> bool:
        """It has done nothing for too long."""
        ...

    def drop(self) -> None:
        """Ends it at once; what runs for it is aborted."""
        ...


class Connections:
    """Those of one listener. Lives in one loop."""

    def __init__(
        self,
        most: int | None = None,
        most_of_address: int | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most` None: what the limit of open files allows. `most_of_address`: of one that is not this machine."""
        self.most = most or max(16, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES))
        self.most_of_address = most_of_address or max(8, self.most // 4)
        self.patience = patience or Patience()
        self._clock = clock
        self._open: dict[Connection, None] = {}
        """The one that has been here, or has waited, longest comes first."""
        self._of_address: Counter[str] = Counter()
        self._full = Seldom()
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Connection) -> bool:
        """False where there is no place for it."""
        address = connection.address
        theirs = self._of_address[address] >= self.most_of_address and not _is_loopback(address)
        if (theirs or len(self._open) >= self.most) and not self._make_room(address if theirs else None):
            self._full.log(log, logging.WARNING, "%d connections are open and none waits: one was refused", len(self))
            return False
        self._open[connection] = None
        self._of_address[address] += 1
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        return True

    def leave(self, connection: Connection) -> None:
        """No error when it has left already."""
        if self._open.pop(connection, True) is None:
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def waits(self, connection: Connection) -> None:
        """It has been answered: of those that may make room it is the last now."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def _make_room(self, address: str | None) -> bool:
        for connection in self._open:
            if connection.waiting and address in (None, connection.address):
                self.leave(connection)
                connection.drop()
                return True
        return False

    def _sweep(self) -> None:
        now = self._clock()
        for connection in [one for one in self._open if one.overdue(now, self.patience)]:
            connection.drop()
        self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep) if self._open else None


class Progress:
    """Whether something moves: a piece of it in each span of time."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._done = 0

    def stuck(self, now: float, unfinished: bool, done: int, span_s: float) -> bool:
        """`done`: bytes moved so far, of something that is `unfinished`. To be asked often."""
        if not unfinished or self._since is None or done - self._done >= _PROGRESS:
            self._since, self._done = (now if unfinished else None), done
            return False
        return now - self._since > span_s


def raise_file_limit() -> None:
    """As many open files as this process may have: the usual soft limit, 1,024, is one for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address == ""  # a UNIX socket
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
