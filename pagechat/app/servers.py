"""Which daemon the app talks to, and with which model: found, started, changed for another one, and back.

A daemon that this app started has one model for its life. Another model is another daemon: in the place of ours, or,
beside one that somebody else started, in a run directory of its own. It knows no screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pagechat import rundir
from pagechat.app.client_api import Client
from pagechat.client import AsyncEngineClient, NoDaemon
from pagechat.daemon.launch import LaunchError, ensure_daemon
from pagechat.rundir import RunDirError


class ServerError(Exception):
    """That server cannot be used; the message says what to do."""


class Started(Protocol):
    """A daemon of ours, as `pagechat.daemon.launch.Launched`."""

    @property
    def ended(self) -> bool: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Server:
    """A daemon, running or to be started."""

    run_dir: Path | None
    """None: this user's."""
    args: tuple[str, ...] = ()
    """Options of `pagechat-daemon serve`, should it have to be started."""
    starts: bool = True
    """False: only one that runs already will do."""

    @property
    def label(self) -> str:
        """What to call it."""
        model = _model(self.args)
        return f"the model {model}" if model else f"the daemon of {self.run_dir}" if self.run_dir else "the one before"


class Servers:
    """The server of now, the one before while a change is under way, and the daemons that were started here."""

    def __init__(
        self,
        run_dir: Path | None,
        args: Sequence[str],
        *,
        start: Callable[[Path | None, Sequence[str]], Started | None] = ensure_daemon,
        connect: Callable[[Path | None], Awaitable[Client]] | None = None,
    ) -> None:
        self.now = Server(run_dir, tuple(args))
        self._before: Server | None = None
        self._start = start
        self._connect = connect or _connect
        self._started: dict[Server, Started] = {}

    async def open(self) -> Client:
        """A connection to the server of now; one that is not needed any more ends first: two models need twice the
        memory. Raises ClientError."""
        for server in [server for server in self._started if server != self.now]:
            await in_thread(self._started.pop(server).stop)
        server = self.now
        if server.starts:
            await in_thread(lambda: self._ensure(server))
        return await self._connect(server.run_dir)

    @property
    def changing(self) -> bool:
        """Another server was chosen and has not proved itself yet."""
        return self._before is not None

    def to_model(self, name: str) -> None:
        """Another model from the next `open` on."""
        ours = self.now in self._started and not self._started[self.now].ended
        args = (*_without_model(self.now.args), "--model", name)
        self._change(Server(self.now.run_dir if ours else _beside(self.now.run_dir, name), args))

    def to_run_dir(self, run_dir: Path) -> None:
        """The daemon that runs there, from the next `open` on. Raises ServerError when none does."""
        chosen = run_dir.expanduser().absolute()
        if not rundir.daemon_lives(chosen):
            raise ServerError(f"No daemon runs in {chosen}. Start one: pagechat-daemon serve --run-dir {chosen}")
        self._change(replace(self.now, run_dir=chosen, args=(), starts=False))

    def settle(self) -> None:
        """The server of now answers: there is no way back any more."""
        self._before = None

    def back(self) -> tuple[Server, Server]:
        """To the server before. (the one that failed, the one of now)."""
        failed = self.now
        if self._before is not None:
            self.now, self._before = self._before, None
        return failed, self.now

    def stop(self, patience_s: float | None = None) -> None:
        """End every daemon that was started here, and wait for that, `patience_s` at most. One that takes longer, say
        because its engine stands still, ends without being waited for: it sees our end of its pipe close."""
        threads = [threading.Thread(target=started.stop, daemon=True) for started in self._started.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience_s)
        self._started.clear()

    def _change(self, server: Server) -> None:
        if server != self.now:
            self._before, self.now = self._before or self.now, server

    def _ensure(self, server: Server) -> None:
        try:
            started = self._start(server.run_dir, server.args)
        except (LaunchError, RunDirError) as error:
            raise NoDaemon(str(error)) from error
        if started is not None:
            self._started[server] = started


async def in_thread(work: Callable[[], None]) -> None:
    """Wait for `work` in a thread that nobody waits for when the program ends, unlike `asyncio.to_thread`'s."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True).start()
    await done.wait()
    if failed:
        raise failed[0]


async def _connect(run_dir: Path | None) -> Client:
    return await AsyncEngineClient.connect(run_dir, name="pagechat")


def _beside(run_dir: Path | None, model: str) -> Path:
    """A run directory for a model beside a daemon that is not ours; the same one each time."""
    place = run_dir or rundir.default_path()
    return place.with_name(f"{place.name}-{hashlib.sha256(model.encode()).hexdigest()[:8]}")


def _model(args: Sequence[str]) -> str | None:
    """The model that these options name."""
    return args[args.index("--model") + 1] if "--model" in args else None


def _without_model(args: Sequence[str]) -> tuple[str, ...]:
    if "--model" not in args:
        return tuple(args)
    at = args.index("--model")
    return (*args[:at], *args[at + 2 :])
