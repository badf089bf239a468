"""The front with a fake engine, in this process or as a real daemon, for tests of everything that talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from engine.process.config import EngineConfig
from pagechat import rundir
from pagechat.client import AsyncEngineClient, ChatEvent
from pagechat.daemon.front import Front
from pagechat.daemon.supervisor import Patience
from pagechat.protocol import ChatMessage, ChatOptions, Finished
from tests.models import write_tokenizer

ROOT = Path(__file__).parent.parent
FAKE_ENGINE = [sys.executable, "-m", "tests.fake_engine"]
QUICK = Patience(backoff_s=0.01, most_backoff_s=0.05, stop_s=3)


def model_folder(folder: Path) -> Path:
    """A folder with the small tokenizer of tests/models.py, which the fake engine names as its model's."""
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder)
    return folder


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


def notes() -> list[str]:
    """Commands the fake engine has received."""
    path = Path(os.environ["FAKE_ENGINE_NOTES"])
    return path.read_text().splitlines() if path.exists() else []


async def until(predicate: Callable[[], Any], what: str, timeout: float = 30) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := predicate()):
        assert time.monotonic() < deadline, f"no {what} after {timeout} s"
        await asyncio.sleep(0.01)
    return found


def wait_until(predicate: Callable[[], Any], what: str, timeout: float = 15) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := predicate()):
        assert time.monotonic() < deadline, f"no {what} after {timeout} s"
        time.sleep(0.01)
    return found


@contextlib.asynccontextmanager
async def running_front(
    config: EngineConfig | None = None, *, patience: Patience = QUICK, **options: Any
) -> AsyncIterator[Front]:
    """A front in this loop, in this test's run directory."""
    directory = rundir.run_dir()
    lock = rundir.DaemonLock(directory, rundir.DaemonInfo(pid=os.getpid(), version="test", started=0.0))
    front = Front(directory, config or EngineConfig(), engine_command=FAKE_ENGINE, patience=patience, **options)
    running = asyncio.create_task(front.run())
    try:
        yield front
    finally:
        front.stop_asked.set()
        await running
        lock.release()


async def whole(client: AsyncEngineClient, text: str, session: str = "test", **options: Any) -> Finished:
    """The last message of one chat."""
    async for event in client.chat(user(text), session=session, options=ChatOptions(**options)):
        last: ChatEvent = event
    assert isinstance(last, Finished)
    return last


class Daemon:
    """`pagechat-daemon serve` in a process of its own."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pagechat.commands", "serve", *arguments],
            cwd=ROOT,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
        )

    def until_answering(self, run_dir: Path | None = None) -> Daemon:
        """Waits until its sockets are there, which is before the engine is ready."""
        directory = rundir.run_dir(run_dir)

        def there() -> bool:
            assert self.process.poll() is None, self.said()
            info = rundir.daemon_info(directory)
            return info is not None and info.pid == self.process.pid and (directory / "clients.sock").exists()

        wait_until(there, "daemon")
        return self

    def said(self) -> str:
        """Everything it said, once it has ended."""
        return self.process.communicate(timeout=20)[0].decode()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextlib.contextmanager
def serving(*arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[Daemon]:
    """A daemon that is ended by SIGTERM at the latest."""
    daemon = Daemon(*arguments, stdin=stdin)
    try:
        yield daemon.until_answering()
    finally:
        end(daemon)


def end(daemon: Daemon) -> None:
    if daemon.process.poll() is None:
        daemon.signal(signal.SIGTERM)
    try:
        daemon.process.wait(20)
    except subprocess.TimeoutExpired:
        daemon.process.kill()
        raise
    for pipe in (daemon.process.stdin, daemon.process.stdout):
        if pipe is not None:
            pipe.close()


def command(*arguments: str, text: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """A `pagechat-daemon` command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pagechat.commands", *arguments],
        cwd=ROOT,
        input=text,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        **options,
    )


def socket_files(run_dir: Path | None = None) -> set[str]:
    """What tells of a living daemon in the run directory."""
    return {path.name for path in rundir.run_dir(run_dir).iterdir()} - {"daemon.lock", "engine.log"}
