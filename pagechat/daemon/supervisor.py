"""Keeps an engine running: starts it, watches it, starts another when it ends, for as long as that takes.

```
                              +-- ended: the next pause is twice as long --+
                              v                                            |
loading -> ready -> (ended) -> restarting (a pause, then a new engine) ----+--> ready
   |
   +--> failed: no engine could ever load this model       stopping from anywhere
```
loading, restarting: requests wait, but those that wait while engines keep ending fail at each such end and in the
pause after it, with the reason and when the next one is tried. failed: they fail at once. Only what the first engines
say of the model is final: an engine that loaded it once is started again for ever, so that neither a request that ends
engines nor a device that is taken for a while leaves a daemon that serves nobody. Knows no client and no text.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zmq

from engine import protocol
from engine.process.config import EngineConfig
from engine.protocol import (
    BlockContent,
    Command,
    EngineFailed,
    EngineReady,
    LoadProgress,
    Reply,
    SessionList,
    SessionReply,
    Snapshot,
    StepOutputs,
    TakeSnapshot,
    UsageReport,
)
from pagechat.daemon.engine_process import EngineProcess
from pagechat.daemon.errors import RequestError
from pagechat.daemon.installation import module_command

State = Literal["loading", "ready", "restarting", "failed", "stopping"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits for what, in seconds, and how often it tries."""

    hang_s: float = 120.0
    """An engine whose step loop answers no ping for so long is taken for dead."""
    quick_failure_s: float = 30.0
    """An engine that ends sooner after it was ready (or before) failed quickly."""
    quick_failures: int = 3
    """After so many in a row requests no longer wait through a pause, and a model that never loaded is given up."""
    backoff_s: float = 1.0
    """Before the second start; doubled before each further one that follows a quick failure."""
    most_backoff_s: float = 30.0
    """No pause is longer."""
    stop_s: float = 5.0
    """For the engine to end by itself."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Whom the supervisor tells what. All are called in the loop's thread."""

    outputs: Callable[[StepOutputs], None]
    report: Callable[[bytes], None]
    """A telemetry frame, as it came."""
    prepare: Callable[[EngineReady], Awaitable[None]]
    """A new engine has loaded; requests wait until this returns. An exception of its own is a failed load."""
    lost: Callable[[str], None]
    """The engine has ended, in words; nothing it was doing will be finished."""
    changed: Callable[[], None]
    """State or load progress are not what they were."""


class Supervisor:
    """The one owner of the engine process."""

    def __init__(
        self,
        run_dir: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        config: EngineConfig,
        listeners: Listeners,
        *,
        command: Sequence[str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`command` None: the engine of this installation."""
        self.state: State = "loading"
        self.load: LoadProgress | None = None
        self.error: str | None = None
        self.ready_engine: EngineReady | None = None
        """What the present engine said when it was ready; None before."""
        self._run_dir, self._context, self._config, self._listeners = run_dir, context, config, listeners
        self._command = list(command or module_command("engine"))
        self._patience = patience or Patience()
        self._engine: EngineProcess | None = None
        self._changed = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tickets = itertools.count(1)
        self._preparing: asyncio.Task[None] | None = None
        self._final = False
        self._listening = False
        self._quick_failures = 0
        self._since = self._next_try = time.monotonic()
        self._pausing = False

    @property
    def engine_pid(self) -> int | None:
        return self._engine.pid if self._engine is not None else None

    @property
    def state_s(self) -> float:
        """Seconds in the present state."""
        return time.monotonic() - self._since

    @property
    def next_try_s(self) -> float | None:
        """Seconds until another engine is started; None when none is waited for."""
        return max(0.0, self._next_try - time.monotonic()) if self._pausing else None

    @property
    def words(self) -> str:
        """The state for people who ask why there is no model."""
        parts = [f"{self.state} for {self.state_s:.0f} s"]
        if self.error:
            parts.append(self.error)
        if self.next_try_s is not None:
            parts.append(f"the next engine is started in {self.next_try_s:.0f} s")
        return "; ".join(parts)

    async def run(self) -> None:
        """Until `stop`, or for ever in state "failed"."""
        while self.state in ("loading", "restarting"):
            lived_s, words = await self._one_life()
            if self.state == "stopping":
                self._lose(words)
                return
            first_load = self.state == "loading"
            quick = self._quick_failures = self._quick_failures + 1 if lived_s < self._patience.quick_failure_s else 0
            self.error, self.load = words, None
            if quick > 1 and not self._final:
                self.error = f"{words}; {quick} engines in a row ended like that"
            given_up = first_load and (self._final or quick >= self._patience.quick_failures)
            pause = min(self._patience.backoff_s * 2 ** min(max(0, quick - 1), 30), self._patience.most_backoff_s)
            self._pausing, self._next_try = not given_up, time.monotonic() + pause
            self._set("failed" if given_up else "loading" if first_load else "restarting")
            self._lose(words)
            if self._pausing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wait_for("stopping")
                self._pausing = False
        await self._wait_for("stopping")

    async def ready(self) -> None:
        """Returns at once when the engine is ready; else waits. Raises RequestError when it will not be."""
        while self.state != "ready":
            if self.state == "failed":
                raise RequestError("engine_failed", f"the engine failed: {self.error}")
            if self._pausing and self._quick_failures >= self._patience.quick_failures:
                raise RequestError("engine_failed", f"the engine is {self.words}")
            if self.state == "stopping":
                raise RequestError("shutting_down", "the daemon is stopping")
            await self._changed.wait()

    def send(self, command: Command) -> None:
        """To the present engine; lost when there is none (whoever was told of its end has nothing to say to it)."""
        if self._engine is not None:
            self._engine.send(command)

    async def snapshot(self) -> Snapshot:
        """The pool between two steps. Raises RequestError (engine_failed, engine_died, shutting_down)."""
        snapshot: Snapshot = await self.ask(lambda ticket: TakeSnapshot(ticket=ticket))
        return snapshot

    async def ask(self, question: Callable[[int], Command]) -> Any:
        """The engine's reply to a question made with a ticket. Raises as `snapshot`."""
        await self.ready()
        ticket = next(self._tickets)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        try:
            self.send(question(ticket))
            return await answer
        finally:
            del self._answers[ticket]

    def refuse(self) -> None:
        """State "stopping": what waits for the engine fails, nothing new begins; what runs goes on."""
        self._listening = self.state == "ready"
        self._set("stopping")

    async def stop(self) -> None:
        """Ends the engine, by force if it must be. `run` returns."""
        if self.state != "stopping":
            self.refuse()
        if self._engine is not None:
            await self._engine.stop(self._patience.stop_s, listening=self._listening)

    # -- one engine ------------------------------------------------------------------------------

    async def _one_life(self) -> tuple[float, str]:
        """From start to end. Returns (seconds it was ready, 0 when it never was; how it ended)."""
        loop = asyncio.get_running_loop()
        self._final = False
        self.load, self.ready_engine = LoadProgress(stage="starting", detail="engine process"), None
        self._listeners.changed()
        engine: EngineProcess | None = None
        watching: asyncio.Task[None] | None = None
        try:
            try:
                engine = EngineProcess(self._run_dir, self._context, self._on_reply, self._listeners.report)
                await engine.start(self._command, self._config)
            except (OSError, zmq.ZMQError) as error:
                self._final = True
                return 0.0, f"cannot start the engine: {error.strerror} ({self._command[0]}, in {self._run_dir})"
            if self.state == "stopping":
                await engine.stop(self._patience.stop_s, listening=False)
                return 0.0, "stopping"
            self._engine = engine
            ended = asyncio.create_task(engine.wait())
            became_ready = asyncio.create_task(self._wait_for("ready", "stopping"))
            await asyncio.wait((ended, became_ready), return_when=asyncio.FIRST_COMPLETED)
            became_ready.cancel()
            ready_at = loop.time() if self.state == "ready" else None
            if ready_at is not None:
                watching = asyncio.create_task(engine.watch(self._patience.hang_s))
            words = await ended
            return (loop.time() - ready_at if ready_at is not None else 0.0), words
        finally:
            for task in (watching, self._preparing):
                if task is not None:
                    task.cancel()
            self._engine = self._preparing = None
            if engine is not None:
                engine.close()

    def _on_reply(self, reply: Reply) -> None:
        match reply:
            case StepOutputs():
                self._listeners.outputs(reply)
            case LoadProgress():
                self.load = reply
                self._listeners.changed()
            case EngineReady():
                self._preparing = asyncio.create_task(self._become_ready(reply))
            case Snapshot() | SessionReply() | SessionList() | UsageReport() | BlockContent():
                waiting = self._answers.get(reply.ticket)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
            case EngineFailed():
                self._final = True
                if self._engine is not None:
                    words = f"{reply.message}; it did not end by itself and was killed"
                    asyncio.get_running_loop().call_later(self._patience.stop_s, self._engine.kill, words)

    async def _become_ready(self, ready: EngineReady) -> None:
        engine = self._engine
        assert engine is not None
        if ready.version != protocol.VERSION:
            self._final = True
            engine.kill(f"the engine speaks protocol version {ready.version}, this front {protocol.VERSION}")
            return
        try:
            await self._listeners.prepare(ready)
        except Exception as error:
            self._final = True
            engine.kill(str(error) or type(error).__name__)
            return
        if self.state in ("loading", "restarting"):
            self.ready_engine, self.load, self.error = ready, None, None
            self._set("ready")

    def _lose(self, words: str) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(RequestError("engine_died", words))
        self._listeners.lost(words)

    def _set(self, state: State) -> None:
        if state != self.state:
            self._since = time.monotonic()
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
        self._listeners.changed()

    async def _wait_for(self, *states: State) -> None:
        while self.state not in states:
            await self._changed.wait()
