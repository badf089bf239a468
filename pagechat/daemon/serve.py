"""The daemon process: takes the lock, runs the front until somebody ends it, leaves nothing behind.

It ends by SIGINT, SIGTERM, a client's StopDaemon, or (ephemeral) when the pipe on its stdin ends because its parent
has gone. A further signal while it cleans up changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.process.config import EngineConfig
from engine.protocol import EngineReady
from pagechat import __version__, rundir
from pagechat.daemon.front import Front, TcpPlan
from pagechat.daemon.http.address import AddressError
from pagechat.daemon.http.connections import raise_file_limit
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.daemon.http.keys import KeysError
from pagechat.daemon.narrate import Narrator
from pagechat.daemon.supervisor import Patience
from pagechat.remote import FILE, remote
from pagechat.signals import SIGNALS, ignore_signals
from pagechat.sizes import format_size

DRAIN_S = 30.0
"""How long an ephemeral daemon whose parent has gone lets other clients' answers go on."""


def serve(
    config: EngineConfig,
    *,
    run_dir: Path | None = None,
    ephemeral: bool = False,
    engine_command: Sequence[str] | None = None,
    patience: Patience | None = None,
    http: HttpPlan | None = None,
    tcp: TcpPlan | None = None,
    drain_s: float = 0.0,
) -> int:
    """Runs the daemon. Returns its exit status: 0 when it was asked to end, 1 when the model cannot be loaded.

    `drain_s`: how long answers may go on once it is asked to end; a second signal ends them.
    `http` None: without that door; `tcp` the same, for clients of other machines.
    Raises RunDirError, AlreadyRunning, AddressError, KeysError, CurveError. An ephemeral daemon whose model cannot be
    loaded goes on, to tell its parent; and it goes on without HTTP where the address is taken.
    """
    directory = rundir.run_dir(run_dir)
    if remote(directory) is not None:
        raise rundir.RunDirError(
            f"{directory / FILE} says that the daemon of this run directory is on another machine; choose another one "
            "for a daemon here"
        )
    raise_file_limit()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one request, one thread; and no pool that a fork would break
    lock = rundir.DaemonLock(directory, rundir.DaemonInfo(pid=os.getpid(), version=__version__, started=time.time()))
    try:
        door, problem = None, None
        if http is not None:
            try:
                door = HttpDoor.listen(http)
            except (AddressError, KeysError) as error:
                if not ephemeral:
                    raise
                problem = str(error)
        daemon = _Daemon(directory, config, ephemeral, engine_command, patience, door, problem, tcp, drain_s)
        return asyncio.run(daemon.run(lock))
    finally:
        lock.release()


class _Daemon:
    def __init__(
        self,
        directory: Path,
        config: EngineConfig,
        ephemeral: bool,
        engine_command: Sequence[str] | None,
        patience: Patience | None,
        http: HttpDoor | None,
        http_problem: str | None,
        tcp: TcpPlan | None,
        drain_s: float,
    ) -> None:
        self._tcp = tcp
        self._drain_s = drain_s
        self._draining: asyncio.Task[None] | None = None
        self._http, self._http_problem = http, http_problem
        self._directory, self._config, self._ephemeral = directory, config, ephemeral
        self._engine_command, self._patience = engine_command, patience
        self._narrator = Narrator()
        self._was_ready = False
        self._status = 0

    async def run(self, lock: rundir.DaemonLock) -> int:
        logger = logging.getLogger("pagechat.daemon")
        logger.addHandler(self._narrator)
        logger.setLevel(logging.INFO)
        loop = asyncio.get_running_loop()
        self._narrator.say(f"pagechat {__version__}, model {self._config.model}, run directory {self._directory}")
        front = Front(
            self._directory,
            self._config,
            engine_command=self._engine_command,
            patience=self._patience,
            on_change=self._on_change,
            http=self._http,
            http_problem=self._http_problem,
            tcp=self._tcp,
        )
        if front.tcp is not None:
            self._narrator.say(f"clients of other machines at tcp://{front.tcp}")
        if self._http is not None:
            self._narrator.say(f"OpenAI-compatible API at {self._http.url}/v1")
        elif self._http_problem is not None:
            self._narrator.say(f"no HTTP: {self._http_problem}")
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, front)
        watching = asyncio.create_task(self._end_with_parent(front)) if self._ephemeral else None
        try:
            await front.run()
        finally:
            self._narrator.progress(None)
            if watching is not None:
                watching.cancel()
            ignore_signals(loop)
            lock.release()
            logger.removeHandler(self._narrator)
        self._narrator.say("stopped")
        return self._status

    def _on_signal(self, front: Front) -> None:
        if self._draining is not None or not self._drain_s:
            front.stop_asked.set()
            return
        self._narrator.say(f"ending within {self._drain_s:g} s: answers under way are finished, nothing new begins")
        self._draining = asyncio.create_task(self._drain(front, self._drain_s))

    async def _drain(self, front: Front, patience_s: float) -> None:
        await front.drain(patience_s)
        front.stop_asked.set()

    def _on_change(self, front: Front) -> None:
        supervisor = front.supervisor
        match supervisor.state:
            case "ready" if supervisor.ready_engine is not None:
                self._narrator.progress(None)
                self._was_ready = True
                self._narrator.say(_describe(supervisor.ready_engine))
            case "failed":
                self._narrator.progress(None)
                self._narrator.say(f"the engine failed: {supervisor.error}")
                if not self._was_ready and not self._ephemeral:
                    self._status = 1
                    front.stop_asked.set()
            case "loading" | "restarting":
                self._narrator.progress(supervisor.load)
            case "stopping":
                self._narrator.progress(None)

    async def _end_with_parent(self, front: Front) -> None:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()

        def read() -> None:
            if not os.read(sys.stdin.fileno(), 4096):
                loop.remove_reader(sys.stdin.fileno())
                gone.set()

        try:
            loop.add_reader(sys.stdin.fileno(), read)
        except (PermissionError, ValueError):  # a file or nothing at all: there is no parent to outlive
            gone.set()
        await gone.wait()
        await self._drain(front, DRAIN_S)


def _describe(ready: EngineReady) -> str:
    model, pool = ready.model, ready.pool
    return (
        f"ready in {ready.load_s:.1f} s: {model.name} ({model.parameters / 1e6:,.0f} M parameters, {model.numbers}, "
        f"{model.device}), context {model.max_context:,} tokens, {pool.num_blocks:,} blocks of {pool.block_size} "
        f"tokens ({format_size(pool.num_blocks * pool.bytes_per_block)})"
    )
