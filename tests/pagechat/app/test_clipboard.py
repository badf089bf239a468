"""Copies reach the clipboard of this machine's screen by its own program, else of the terminal by OSC 52."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagechat.app import clipboard
from pagechat.app.clipboard import MACOS, WAYLAND, WINDOWS, X11, Tool, find
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import wait_until

TEXT = "naïve $(touch x) `y`\n\x1b]52;c;\x07 漢"


def program(folder: Path, name: str, body: str) -> Path:
    """An executable of that name."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("environment", "platform", "tool"),
    [
        ({}, "linux", None),
        ({"DISPLAY": ":0"}, "linux", X11[0]),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, "linux", WAYLAND),
        ({"WSL_DISTRO_NAME": "Debian"}, "linux", WINDOWS),
        ({}, "darwin", MACOS),
        ({"SSH_CONNECTION": "1 2 3 4"}, "darwin", None),
        ({"SSH_CONNECTION": "1 2 3 4", "DISPLAY": "localhost:10.0"}, "linux", X11[0]),
    ],
)
def test_the_program_is_that_of_the_screen_in_front(
    environment: dict[str, str], platform: str, tool: Tool | None, tmp_path: Path
) -> None:
    for name in ("wl-copy", "xclip", "xsel", "pbcopy", "clip.exe"):
        program(tmp_path, name, "exit 0")
    assert find({"PATH": str(tmp_path), **environment}, platform) == tool


def test_a_program_that_is_not_there_is_not_chosen(tmp_path: Path) -> None:
    program(tmp_path, "xsel", "exit 0")
    assert find({"PATH": str(tmp_path), "DISPLAY": ":0", "WAYLAND_DISPLAY": "w"}, "linux") == X11[1]
    assert find({"PATH": str(tmp_path / "empty"), "DISPLAY": ":0"}, "linux") is None


async def test_the_text_arrives_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    cat = program(tmp_path, "copy", f"exec cat > '{out}'")
    assert await clipboard.put(Tool((str(cat),)), TEXT)
    assert out.read_text() == TEXT
    assert await clipboard.put(Tool((str(cat),), "utf-16"), TEXT)
    assert out.read_bytes().decode("utf-16") == TEXT


async def test_a_program_that_fails_or_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "PATIENCE_S", 0.2)
    assert not await clipboard.put(Tool((str(tmp_path / "none"),)), TEXT)
    assert not await clipboard.put(Tool((str(program(tmp_path, "bad", "exit 1")),)), TEXT)
    assert not await clipboard.put(Tool((str(program(tmp_path, "slow", "exec sleep 60")),)), TEXT)


async def test_the_app_copies_by_the_program_and_else_by_the_terminal(
    open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    program(tmp_path / "bin", "xclip", f"exec cat > '{out}'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    async with open_app(FakeDaemon()) as (app, pilot):
        written: list[str] = []
        monkeypatch.setattr(app._driver, "write", written.append)
        app.main.copy("The answer", TEXT)
        await wait_until(pilot, lambda: out.exists() and out.read_text() == TEXT)
        assert app.clipboard == TEXT
        assert not any("\x1b]52" in sequence for sequence in written)
        program(tmp_path / "bin", "xclip", "exit 1")
        app.main.copy("The answer", "again")
        await wait_until(pilot, lambda: any("\x1b]52" in sequence for sequence in written))
