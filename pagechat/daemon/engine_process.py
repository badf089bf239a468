"""One life of an engine process: its two sockets, its pipe, its log, and what it said before it ended.

The pipe on the engine's stdin carries one line of configuration and then stays open: its end tells the engine that
the front is gone, however the front went. What to do about an engine that ended is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from engine import protocol
from engine.process.config import EngineConfig
from engine.protocol import Command, EngineFailed, Ping, Pong, Reply, Shutdown
from pagechat import rundir
from pagechat.daemon import installation
from pagechat.sockets import LoopSocket

LOG_KEPT = 64 * 1024
LOG_LIMIT = 1024 * 1024
"""Bytes of engine.log above which, at an engine's start, only the last LOG_KEPT stay."""

_LAST_WORDS_S = 0.1
"""How long frames that were under way when the process ended may take to arrive."""


class EngineProcess:
    """A running engine. Make it with `start`, await `wait`, then `close`."""

    def __init__(
        self,
        run_dir: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        on_reply: Callable[[Reply], None],
        on_report: Callable[[bytes], None],
    ) -> None:
        self._run_dir = run_dir
        self._log = run_dir / "engine.log"
        self._log_start = 0
        self._on_reply = on_reply
        self._process: asyncio.subprocess.Process | None = None
        self._commands = self._bind(context, zmq.DEALER, "engine", self._on_command_frames)
        self._events = self._bind(context, zmq.SUB, "events", lambda frames: on_report(frames[0]))
        self._pinged = 0
        self._answered_at = 0.0
        self._answered = True
        self.last_words = ""
        """Why the engine says it ended, or why it was ended."""

    async def start(self, command: Sequence[str], config: EngineConfig) -> None:
        """Starts the process and tells it its configuration. Raises OSError when there is no such command."""
        log = _open_log(self._log)
        try:
            self._log_start = os.fstat(log).st_size
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, env=installation.environment()
            )
        finally:
            os.close(log)
        self._process = process
        told = msgspec.structs.replace(
            config,
            command_endpoint=rundir.endpoint(self._run_dir, "engine"),
            telemetry_endpoint=rundir.endpoint(self._run_dir, "events"),
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it ended already; `wait` says so
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            await process.stdin.drain()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def send(self, command: Command) -> None:
        """Queues a command. To an engine that is not there any more it is lost, which `wait` will tell."""
        with contextlib.suppress(zmq.Again):
            self._commands.send(protocol.encode(command))

    async def wait(self) -> str:
        """Waits for the end of the process, however it comes, and says in words how it came."""
        assert self._process is not None
        status = await self._process.wait()
        await asyncio.sleep(_LAST_WORDS_S)
        self._commands.drain()
        self._events.drain()
        if self.last_words:
            return self.last_words
        logged = self._last_log_line() if status > 0 else ""
        return f"the engine {_how(status)}: {logged}" if logged else f"the engine {_how(status)}"

    async def watch(self, hang_timeout_s: float) -> None:
        """Pings the step loop for ever; kills an engine that leaves a ping unanswered for `hang_timeout_s`."""
        loop = asyncio.get_running_loop()
        self._answered_at = loop.time()
        while True:
            await asyncio.sleep(min(5.0, hang_timeout_s / 4))
            if self._answered:
                self._answered = False
                self._answered_at = loop.time()
                self._pinged += 1
                self.send(Ping(ticket=self._pinged))
            elif loop.time() - self._answered_at > hang_timeout_s:
                self.kill(f"the engine did not answer for {hang_timeout_s:g} s and was killed")

    def kill(self, reason: str) -> None:
        self.last_words = self.last_words or reason
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self, patience_s: float, *, listening: bool) -> None:
        """Ends the process: by `Shutdown` when it is `listening` for commands, by its pipe when it still loads."""
        if self._process is None:
            return
        if listening:
            self.send(Shutdown())
        else:
            self._close_pipe()
        try:
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        except TimeoutError:
            self.kill("the engine did not end when asked and was killed")
            await self._process.wait()

    def close(self) -> None:
        """Closes the sockets and removes their files, which ZeroMQ leaves: a successor binds the same names."""
        self._close_pipe()
        self._commands.close()
        self._events.close()
        for name in ("engine", "events"):
            (self._run_dir / f"{name}.sock").unlink(missing_ok=True)

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _last_log_line(self) -> str:
        """What an engine that could not even speak our protocol wrote last; a traceback's last line, usually."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_start, self._log.stat().st_size - 4096))
                lines = log.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _bind(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        name: str,
        on_message: Callable[[list[bytes]], None],
    ) -> LoopSocket:
        socket = context.socket(kind)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.setsockopt(zmq.RCVHWM, 10_000)
        else:
            socket.set_hwm(0)  # neither side may lose a command or a token
        socket.bind(rundir.endpoint(self._run_dir, name))
        return LoopSocket(socket, on_message)

    def _on_command_frames(self, frames: list[bytes]) -> None:
        try:
            reply = protocol.decode_reply(frames[0])
        except protocol.ProtocolError as error:
            self.kill(f"the engine sent something that is no message of ours: {error}")
            return
        if isinstance(reply, Pong):
            self._answered = self._answered or reply.ticket == self._pinged
        elif isinstance(reply, EngineFailed):
            self.last_words = self.last_words or reply.message
        self._on_reply(reply)


def _open_log(path: Path) -> int:
    """A file descriptor at the end of the log, which is cut to its last part first when it has grown too long."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT:
            path.write_bytes(path.read_bytes()[-LOG_KEPT:])
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-status} ({name})"
