"""The app on a real pseudo-terminal: stopped and let go on, killed, and given bytes that are no text."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pyte
import pytest

from pagechat.store import Store

ROOT = Path(__file__).parents[3]
APP = """
import os, sys
from pathlib import Path
from pagechat.app.app import PagechatApp
from pagechat.store import Store
from tests.pagechat.app.fake import FakeDaemon
Path(sys.argv[1], "pid").write_text(str(os.getpid()))
app = PagechatApp(FakeDaemon().connect, Store(Path(sys.argv[1], "chats.db")))
app.run()
sys.exit(app.return_code or 0)
"""
READY = "Ask something"
COLUMNS, ROWS = 100, 30
MODES = {"alternate screen": 1049, "mouse": 1003, "mouse in cells": 1006, "focus": 1004, "paste": 2004}


class Shell:
    """A shell of a person's, with job control, on a terminal that is looked at."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
            "PS1": "shell> ",
        }
        environment |= {"PAGECHAT_CONFIG": str(folder / "config.toml"), "PYTHONPATH": str(ROOT)}
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "PROMPT_COMMAND"):
            environment.pop(name, None)
        command = command or ("/bin/bash", "--norc", "--noprofile", "--noediting", "-i")
        self.child = pexpect.spawn(
            command[0], list(command[1:]), env=environment, dimensions=(ROWS, COLUMNS), timeout=None, cwd=str(folder)
        )

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def type(self, keys: str | bytes) -> None:
        self.child.send(keys)

    def read(self) -> None:
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            data = self.child.read_nonblocking(65536, timeout=0.05)
            self.raw += data
            self._stream.feed(re.sub(rb"\x1b\[[<>][^a-zA-Z]*u", b"", data))  # pyte prints what it does not know

    def wait(self, predicate: Callable[[], object], what: str, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not predicate():
            assert time.monotonic() < deadline, f"no {what}; the screen:\n{self.text}"
            self.read()

    def wait_for(self, text: str) -> None:
        self.wait(lambda: text in self.text, repr(text))

    def modes(self) -> set[str]:
        """What has been switched on and not off again."""
        on = set()
        for name, number in MODES.items():
            found = re.findall(rb"\x1b\[\?%d([hl])" % number, self.raw)
            if found and found[-1] == b"h":
                on.add(name)
        return on

    @property
    def line_flags(self) -> int:
        return int(termios.tcgetattr(self.child.child_fd)[3]) & (termios.ICANON | termios.ECHO | termios.ISIG)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "app.py").write_text(APP)
    shell = Shell(tmp_path)
    yield shell
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(shell.pid, signal.SIGKILL)
    shell.child.close(force=True)


def start(shell: Shell) -> int:
    shell.wait_for("shell>")
    shell.type(f"{sys.executable} app.py {shell.folder}; echo exit=$?\r")
    shell.wait_for(READY)
    shell.wait_for("tok/s")
    return shell.pid


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="how a process is, is read in /proc")


@needs_proc
@pytest.mark.parametrize("how", ["ctrl+z", "SIGTSTP", "SIGSTOP"])
def test_a_stopped_app_gives_the_terminal_back_and_draws_all_of_it_again(shell: Shell, how: str) -> None:
    pid = start(shell)
    shell.type("half a question")
    shell.wait_for("half a question")
    before = shell.text
    if how == "ctrl+z":
        shell.type("\x1a")
    else:
        os.kill(pid, signal.SIGTSTP if how == "SIGTSTP" else signal.SIGSTOP)
    shell.wait(lambda: stopped(pid), "stopped app")
    shell.wait_for("Stopped")
    if how != "SIGSTOP":  # which nobody can answer
        assert not shell.modes()
    shell.type("echo here I am\r")
    shell.wait_for("\nhere I am")
    shell.type("fg\r")
    shell.wait(lambda: shell.text == before, f"screen as before:\n{before}\nbut")
    assert len(shell.modes()) == len(MODES)
    shell.type(", whole")
    shell.wait_for("half a question, whole")


@needs_proc
def test_after_stops_that_nobody_told_of_no_key_is_cut(tmp_path: Path) -> None:
    """SIGCONT alone used to start another thread that read keys: each got some of the bytes."""
    (tmp_path / "app.py").write_text(APP)
    shell = Shell(tmp_path, "/bin/sh", "-c", f"{sys.executable} app.py {tmp_path}; true")  # without job control
    try:
        shell.wait_for(READY)
        shell.wait_for("tok/s")
        for _ in range(3):
            os.kill(shell.pid, signal.SIGSTOP)
            shell.wait(lambda: stopped(shell.pid), "stopped app")
            os.kill(shell.pid, signal.SIGCONT)
            shell.wait(lambda: not stopped(shell.pid), "app that goes on")
        shell.type("begin ")  # a key that comes while the terminal is taken again is flushed, as at any start
        shell.wait_for("begin")
        text = " ".join(f"{number} 使用 über" for number in range(60))
        data = text.encode()
        for begin in range(0, len(data), 7):
            shell.type(data[begin : begin + 7])
            shell.read()
        shell.wait(lambda: "59" in shell.text and "59 " in shell.text, "end of the text")
        shell.type("\r")
        shell.wait(lambda: text in sent(tmp_path), f"whole message; {sent(tmp_path)}")
    finally:
        os.kill(shell.pid, signal.SIGKILL)
        shell.child.close(force=True)


def sent(folder: Path) -> str:
    """The last question."""
    store = Store(folder / "chats.db")
    try:
        asked = [m.content for chat in store.chats() for m in store.messages(chat.id) if m.role == "user"]
    finally:
        store.close()
    return asked[-1] if asked else ""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL, signal.SIGQUIT])
def test_a_killed_app_leaves_a_clean_terminal(shell: Shell, number: signal.Signals) -> None:
    shell.type("ulimit -c 0\r")
    pid = start(shell)
    assert len(shell.modes()) == len(MODES)
    os.kill(pid, number)
    shell.wait(lambda: "exit=" in shell.text.replace("echo exit=$?", ""), "prompt")
    shell.wait(lambda: not shell.modes(), "terminal without our modes")
    shell.type("stty -a; echo now=$?\r")
    shell.wait_for("now=0")
    assert re.search(r"(?<!-)icanon", shell.text)
    assert re.search(r"(?<!-)\becho\b", shell.text)
    assert re.search(r"(?<!-)\bixon\b", shell.text)


def test_a_byte_that_is_no_text_is_a_letter_nobody_knows(shell: Shell) -> None:
    pid = start(shell)
    shell.type(b"a\x80b\xff\xfe\xc3")
    shell.type(b"c")
    shell.wait_for("a�b��")
    shell.type("d\r")
    shell.wait(lambda: "echo" in shell.text, "answer")
    os.kill(pid, 0)
    shell.type("\x11")
    shell.wait_for("exit=0")


def test_the_tour_has_the_terminal_and_gives_it_back(shell: Shell) -> None:
    tour = ("/bin/sh", "-c", "echo this is the tour; read line; echo it ends: $line")
    app = f"import pagechat.app.app as one\none.TOUR_COMMAND = {tour!r}\n{APP}"
    (shell.folder / "app.py").write_text(app)
    start(shell)
    shell.wait_for("New here? /tour")
    shell.type("/tour\r")
    shell.wait_for("this is the tour")
    assert not shell.modes()
    shell.type("well\r")
    shell.wait(lambda: len(shell.modes()) == len(MODES), "app again")
    shell.wait_for("tok/s")
    shell.wait(lambda: READY in shell.text and "New here?" not in shell.text, "first screen that offers no tour")
    shell.type("whole")
    shell.wait_for("whole")
    shell.type("\x11")
    shell.wait_for("exit=0")
    shell.type("clear\r")
    shell.wait(lambda: READY not in shell.text, "empty screen")
    start(shell)
    shell.wait_for("16-token blocks")  # the tour is offered before the engine is asked for
    assert "New here?" not in shell.text
