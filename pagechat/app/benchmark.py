"""How quick the app is: `python -m pagechat.app.benchmark`. Takes about a minute; a daemon is started for it.

The app runs in a pseudo-terminal, as for a person. Four tabs stream 50 tokens a second each, and telemetry of a pool of
65,536 blocks comes ten times a second, both prepared beforehand, so that their making costs nothing. Measured:

- from a key press to its letter among the bytes the terminal gets (p50, p95), and the app's processor time meanwhile
- from the start of the program, `pagechat` and nothing else, to the input on the screen, beside a daemon that runs
- opening a chat of 20,000 tokens, and what redrawing its growing answer takes beside that of a new chat
"""

from __future__ import annotations

import asyncio
import gc
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pagechat.app.benchmark_load import NUM_BLOCKS, TABS, TOKENS_PER_S, LoadedClient, long_chat
from pagechat.bench.machine import this_machine
from pagechat.client import EngineClient
from pagechat.daemon.launch import ensure_daemon

if TYPE_CHECKING:  # imported when it is measured
    from pagechat.app.app import PagechatApp
    from pagechat.app.widgets.transcript import Transcript

ROWS, COLUMNS = 50, 160
KEYS = 120
KEY_EVERY_S = 0.15
LETTERS = "абвгдежзийклмнопрстуфхцчшщъыьэюя"
"""That nothing else on the screen is written with."""
STARTS = 5
REDRAWS = 40
LONG_TOKENS = 20_000


def main() -> int:
    """Run everything, or, with an argument, the app that is measured."""
    if sys.argv[1:]:
        return asyncio.run(_app(Path(sys.argv[1])))
    print(this_machine().line())
    print(f"{COLUMNS}x{ROWS} cells; {TABS} tabs of {TOKENS_PER_S} tokens/s, {NUM_BLOCKS:,} blocks changing at 10 Hz\n")
    starts = _starts()
    print(f"start to input on screen     {_ms(statistics.median(starts))}, slowest {_ms(max(starts))}  (aim 700 ms)")
    delays, share = _typing()
    p95 = statistics.quantiles(delays, n=20)[-1]
    print(f"key press to paint           p50 {_ms(statistics.median(delays))}, p95 {_ms(p95)}  (aim p95 50 ms)")
    print(f"processor time meanwhile     {100 * share:.0f} % of one core  (aim 50 %)")
    opened, fresh, grown = asyncio.run(_long_chat())
    print(f"a {LONG_TOKENS:,}-token chat opens   {_ms(opened)}  (aim 300 ms)")
    print(f"one redraw while it streams  {_ms(grown)}, in a new chat {_ms(fresh)}")
    return 0


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


# -- the app in a pseudo-terminal ------------------------------------------------------------------


class Terminal:
    """A child with a terminal of its own, read as raw bytes."""

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        self.started = time.perf_counter()
        master, slave = pty.openpty()
        _set_size(slave)
        environment = {
            **(environment or os.environ),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
        }
        self.child = subprocess.Popen(
            [sys.executable, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._master = master

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str, patience: float = 60.0) -> float:
        """The moment at which the terminal has got `text`, since the call before."""
        wanted, seen = text.encode(), b""
        deadline = time.perf_counter() + patience
        while time.perf_counter() < deadline:
            if select.select([self._master], [], [], 0.5)[0]:
                seen = seen[-len(wanted) :] + os.read(self._master, 1 << 16)
                if wanted in seen:
                    return time.perf_counter()
        raise TimeoutError(f"no {text!r} within {patience:g} s")

    def read_for(self, seconds: float) -> None:
        """Read and forget, as a terminal that draws."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            if select.select([self._master], [], [], left)[0]:
                os.read(self._master, 1 << 16)

    def processor_s(self) -> float:
        """Processor time of the child so far (proc(5), fields 14 and 15 of stat)."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._master)


def _set_size(descriptor: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))


@contextmanager
def _ending(terminal: Terminal) -> Iterator[Terminal]:
    try:
        yield terminal
    finally:
        terminal.end()


def _starts() -> list[float]:
    """Seconds of each start. The first is left out: as on any machine, it compiles what the others find compiled."""
    with tempfile.TemporaryDirectory(prefix="pagechat-bench-") as folder:
        place = Path(folder)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGECHAT_")}
        environment |= {
            "PAGECHAT_RUN_DIR": str(place / "run"),
            "PAGECHAT_DATA_DIR": str(place / "data"),
            "XDG_CONFIG_HOME": str(place / "config"),
            "PYTHONPYCACHEPREFIX": str(place / "compiled"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        daemon = ensure_daemon(place / "run", ["--no-http", "--num-blocks", "256"])
        assert daemon is not None, "nobody else knows this folder"
        try:
            _wait_until_ready(place / "run")
            return [_start(environment) for _ in range(STARTS + 1)][1:]
        finally:
            daemon.stop()


def _wait_until_ready(run_dir: Path) -> None:
    with EngineClient.connect(run_dir) as client:
        while client.status().state != "ready":
            time.sleep(0.2)


def _start(environment: Mapping[str, str]) -> float:
    terminal = Terminal("-c", "from pagechat.start import main; main()", environment=environment)
    with _ending(terminal):
        return terminal.wait_for("rite a message") - terminal.started


def _typing() -> tuple[list[float], float]:
    """(delay of each key, the app's processor time as a share of one core)."""
    with (
        tempfile.TemporaryDirectory(prefix="pagechat-bench-") as folder,
        _ending(Terminal("-m", "pagechat.app.benchmark", str(Path(folder) / "chats.db"))) as terminal,
    ):
        terminal.wait_for("●")
        terminal.read_for(3.0)
        delays: list[float] = []
        began, used = time.perf_counter(), terminal.processor_s()
        for number in range(KEYS):
            letter = LETTERS[number % len(LETTERS)]
            pressed = time.perf_counter()
            terminal.press(letter)
            delays.append(terminal.wait_for(letter) - pressed)
            terminal.read_for(KEY_EVERY_S * (0.5 + number % 7 / 6))  # at no fixed place between two ticks of the app
            if letter == LETTERS[-1]:
                terminal.press("\x15")  # clears the line: each letter is new on the screen
                terminal.read_for(0.3)
        elapsed = time.perf_counter() - began
        return delays, (terminal.processor_s() - used) / elapsed


async def _app(db: Path) -> int:
    from pagechat.app.app import PagechatApp
    from pagechat.store import Store

    client = LoadedClient(NUM_BLOCKS)

    async def connect() -> LoadedClient:
        return client

    client.prepare()
    gc.freeze()  # what was prepared is none of the app's: it need not look through it for garbage
    app = PagechatApp(connect, Store(db))
    app.call_later(_load, app)
    await app.run_async()
    return app.return_code or 0


async def _load(app: PagechatApp) -> None:
    """Ask in as many tabs, as soon as the engine is there."""
    while app.main.client is None or not app.main.is_mounted:
        await asyncio.sleep(0.05)
    for number in range(TABS):
        if number:
            await app.main.action_command("chat.new")
        app.main.sender.submit(app.tabs.active, f"question {number}")
    await app.main.follow()


# -- a long chat, in this process ------------------------------------------------------------------


async def _long_chat() -> tuple[float, float, float]:
    """(seconds to open it, seconds of a redraw in a new chat, and at its end)."""
    from pagechat.app.app import PagechatApp
    from pagechat.store import Store

    with tempfile.TemporaryDirectory(prefix="pagechat-bench-") as folder:
        store = Store(Path(folder) / "chats.db")
        store.create_chat("long", "long")
        for role, text in long_chat(LONG_TOKENS):
            store.add_message("long", role, text)

        async def connect() -> LoadedClient:
            return LoadedClient(64)

        app = PagechatApp(connect, store)
        async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
            while app.main.client is None:
                await pilot.pause(0.05)
            fresh = await _redraws(app)
            await app.tabs.active.stop(app.main.client)
            began = time.perf_counter()
            await app.tabs.open("long")
            await app.main.switched()
            await pilot.pause()
            opened = time.perf_counter() - began
            grown = await _redraws(app)
            await app.leave()
    return opened, fresh, grown


async def _redraws(app: PagechatApp) -> float:
    """Median time of a redraw while an answer streams."""
    app.main.sender.submit(app.tabs.active, "go on")
    times: list[float] = []
    async for transcript in _growing(app):
        began = time.perf_counter()
        await transcript.sync(now=True)
        times.append(time.perf_counter() - began)
        if len(times) == REDRAWS:
            break
    return statistics.median(times)


async def _growing(app: PagechatApp) -> AsyncIterator[Transcript]:
    while True:
        await asyncio.sleep(0.03)
        if app.main.transcript.stale and app.tabs.active.streaming:
            yield app.main.transcript


if __name__ == "__main__":
    sys.exit(main())
