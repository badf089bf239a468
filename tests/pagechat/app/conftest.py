"""An app over a fake daemon and a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from pagechat.app import link, pace
from pagechat.app.app import PagechatApp
from pagechat.store import Store
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import wait_until

OpenApp = Callable[..., AbstractAsyncContextManager[tuple[PagechatApp, Pilot[None]]]]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def open_app(db: Path, monkeypatch: pytest.MonkeyPatch) -> OpenApp:
    """`async with open_app(daemon, size=...) as (app, pilot)`: an app that is connected and ready. It may meet no error
    that nobody expected, unless `faulty`."""
    monkeypatch.setattr(link, "SUBSCRIBE_S", 0)  # the fake subscribes at once
    monkeypatch.setattr(pace, "SHARE", 100.0)  # the engine is in this process: its work is not the app's
    monkeypatch.setenv("PAGECHAT_CONFIG", str(db.with_name("config.toml")))
    for screen in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):  # the clipboard of who runs the tests is theirs
        monkeypatch.delenv(screen, raising=False)

    @asynccontextmanager
    async def open_(
        daemon: FakeDaemon,
        *,
        size: tuple[int, int] = (120, 36),
        ready: bool = True,
        connect: Callable[[], Awaitable[object]] | None = None,
        faulty: bool = False,
    ) -> AsyncIterator[tuple[PagechatApp, Pilot[None]]]:
        app = PagechatApp(connect or daemon.connect, Store(db))  # type: ignore[arg-type]
        async with app.run_test(size=size, notifications=True) as pilot:
            if ready:
                await wait_until(pilot, lambda: app.screen is app.main and app.view.mirror is not None)
            yield app, pilot
            assert app.boundary is None or not app.boundary.unexpected or faulty, app.boundary.unexpected
            await app.leave()

    return open_
