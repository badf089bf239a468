"""Starts a daemon for a program that found none, tied to that program's life.

The child holds the other end of a pipe: when this process ends, however it ends, so does the daemon, after it has
finished what other clients asked. Two programs may start at the same moment: one daemon wins, both use it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from engine.protocol import VERSION, encode
from pagechat import rundir
from pagechat.daemon.installation import environment, module_command
from pagechat.protocol import Hello, Welcome, decode_front_message
from pagechat.remote import remote

START_S = 30.0
"""From the start of the process to the first answer on its socket; the model is not loaded by then."""

_STOP_S = 40.0
_POLL_MS = 50
_LOG_LIMIT = 1024 * 1024


class LaunchError(RuntimeError):
    """No daemon could be started; the message says why."""


class Launched:
    """A daemon of ours."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path) -> None:
        self._process = process
        self.run_dir = run_dir
        self.pid = process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Lets it end and waits for it; it first finishes what other clients asked."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def ensure_daemon(run_dir: Path | None, args: Sequence[str]) -> Launched | None:
    """A daemon that answers in `run_dir` (None: this user's). None: one ran already, or another program started one.

    `args` are options of `pagechat-daemon serve` for a daemon that is started. Blocks until the daemon answers,
    well before its model is loaded (`Status.load` tells about that). Raises LaunchError, RunDirError.
    """
    directory = rundir.run_dir(run_dir)
    if remote(directory) is not None:
        return None  # the daemon is on another machine, and starts there
    if rundir.daemon_lives(directory) and _wait_for_answer(directory, None) is not None:
        return None
    launched = Launched(_start(directory, args), directory)
    try:
        answering = _wait_for_answer(directory, launched)
        if answering is None:
            raise LaunchError(f"the daemon did not start: {_last_line(directory / rundir.DAEMON_LOG)}")
    except BaseException:
        launched.stop()
        raise
    if answering != launched.pid:
        launched.stop()
        return None
    return launched


def _start(directory: Path, args: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [*module_command("pagechat.commands"), "serve", "--ephemeral", "--run-dir", str(directory), *args]
    path = directory / rundir.DAEMON_LOG
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    if path.exists() and path.stat().st_size > _LOG_LIMIT:
        flags |= os.O_TRUNC
    log = os.open(path, flags, 0o600)
    try:
        # A session of its own: the terminal's Ctrl-C is for the program in front of it.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment(), start_new_session=True
        )
    finally:
        os.close(log)


def _wait_for_answer(directory: Path, launched: Launched | None) -> int | None:
    """The process id of the daemon that answers here; None when there is none left that could."""
    deadline = time.monotonic() + START_S
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RECONNECT_IVL, _POLL_MS)
    try:
        socket.connect(rundir.endpoint(directory, "clients"))
        socket.send(encode(Hello(version=VERSION, client="launch")))
        while time.monotonic() < deadline:
            if socket.poll(_POLL_MS):
                answer = decode_front_message(socket.recv())
                if isinstance(answer, Welcome):
                    return answer.pid
                info = rundir.daemon_info(directory)  # it answers, if only to say that it speaks otherwise
                return info.pid if info else -1
            if (launched is None or launched.ended) and not rundir.daemon_lives(directory):
                return None
        raise LaunchError(f"the daemon of {directory} did not answer within {START_S:g} s")
    finally:
        socket.close(linger=0)
        context.term()


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text("utf-8", "replace").split("\n")
    except OSError:
        return "no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "no word in its log")
