"""The terminal app `pagechat`. The functions here are the ways in; everything else is imported only when it runs."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagechat.app.app import PagechatApp
    from pagechat.store import Store


STOP_S = 1.5
"""How long leaving waits for the end of the daemon that the app started. The tour's folder goes with its daemon."""


def run(*, run_dir: Path | None, daemon_args: list[str], theme: str | None) -> int:
    """Run the app on this terminal (the caller has seen that there is one) and return its exit code.

    Connects to the daemon of `run_dir` (None: this user's) or starts one with `daemon_args`, which then ends
    with the app. Exit code 2: no such theme. 1: the history cannot be used, or the last words were not saved.
    """
    gc.disable()  # until the first screen: imports make many objects and no garbage, and looking takes a fifth of it
    from pagechat.store import Store, StoreError

    if not _theme_exists(theme):
        return 2
    try:
        store = Store()
    except StoreError as error:
        print(f"pagechat: the chat history cannot be opened: {error}", file=sys.stderr)
        return 1
    return _run_connected(store, run_dir, daemon_args, theme)


def run_tour(*, daemon_args: list[str], theme: str | None) -> int:
    """The guided tour: a daemon of its own with a small pool, and a history that is gone afterwards."""
    from pagechat.app.tour import DAEMON_ARGS
    from pagechat.store import Store

    if not _theme_exists(theme):
        return 2
    with tempfile.TemporaryDirectory(prefix="pagechat-tour-") as folder:
        place = Path(folder)
        store = Store(place / "chats.db")
        return _run_connected(store, place / "run", [*daemon_args, *DAEMON_ARGS], theme, tour=True)


def run_replay(file: Path, *, theme: str | None) -> int:
    """Play a recording. Exit code 1: it cannot be read."""
    from pagechat.app.replay import ReplayApp
    from pagechat.app.terminal import wants_mouse
    from pagechat.recording import RecordingError, load

    if not _theme_exists(theme):
        return 2
    try:
        recording = load(file)
    except RecordingError as error:
        print(f"pagechat: {error}", file=sys.stderr)
        return 1
    app = ReplayApp(recording, theme=theme)
    app.run(mouse=wants_mouse())
    return app.return_code or 0


def _theme_exists(theme: str | None) -> bool:
    if theme is None:
        return True
    from pagechat.themes import load_themes

    names = sorted(loaded.name for loaded in load_themes()[0])
    if theme in names:
        return True
    print(f"pagechat: no theme {theme!r}; there are {', '.join(names)}", file=sys.stderr)
    return False


def _run_connected(
    store: Store, run_dir: Path | None, daemon_args: list[str], theme: str | None, tour: bool = False
) -> int:
    from pagechat.app.app import PagechatApp
    from pagechat.app.servers import Servers
    from pagechat.app.terminal import wants_mouse

    servers = Servers(run_dir, daemon_args)
    app: PagechatApp = PagechatApp(servers.open, store, theme=theme, tour=tour, servers=servers)
    try:
        app.run(mouse=wants_mouse())
    finally:
        servers.stop(None if tour else STOP_S)
    return app.return_code or 0
