"""The terminal app `pagechat`. `run` is the way in; everything else is imported only when it runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path


def run(*, run_dir: Path | None, daemon_args: list[str], theme: str | None) -> int:
    """Run the app on this terminal (the caller has seen that there is one) and return its exit code.

    Connects to the daemon of `run_dir` (None: this user's) or starts one with `daemon_args`, which then ends
    with the app. Exit code 2: no such theme. 1: the history cannot be used, or the last words were not saved.
    """
    from pagechat.app.app import PagechatApp
    from pagechat.client import AsyncEngineClient, NoDaemon
    from pagechat.daemon.launch import Launched, LaunchError, ensure_daemon
    from pagechat.rundir import RunDirError
    from pagechat.store import Store, StoreError
    from pagechat.themes import load_themes

    themes = load_themes()
    names = sorted(loaded.name for loaded in themes[0])
    if theme is not None and theme not in names:
        print(f"pagechat: no theme {theme!r}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    try:
        store = Store()
    except StoreError as error:
        print(f"pagechat: the chat history cannot be opened: {error}", file=sys.stderr)
        return 1
    launched: list[Launched] = []

    def find_or_start() -> None:
        started = ensure_daemon(run_dir, daemon_args)
        if started is not None:
            launched.append(started)

    async def open_client() -> AsyncEngineClient:
        try:
            await asyncio.to_thread(find_or_start)
        except (LaunchError, RunDirError) as error:
            raise NoDaemon(str(error)) from error
        return await AsyncEngineClient.connect(run_dir, name="pagechat")

    app = PagechatApp(open_client, store, theme=theme, themes=themes)
    try:
        app.run()
    finally:
        for daemon in launched:
            daemon.stop()
    return app.return_code or 0
