"""Pictures of the screens. After a wanted change: `pytest tests/pagechat/app/test_pictures.py --snapshot-update`,
then look at the SVGs that changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.app import App
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot

from pagechat.app import link, pace
from pagechat.app.app import PagechatApp
from pagechat.app.gauges import Gauges, Sample
from pagechat.app.pool_view import PoolView
from pagechat.app.rate import Rate
from pagechat.app.replay import ReplayApp, ReplayScreen
from pagechat.app.screens.settings import SettingsScreen
from pagechat.app.widgets.badge import Badge
from pagechat.app.widgets.block_map import BlockMap
from pagechat.recording import load
from pagechat.store import Store
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import drawn, say, wait_until
from tests.pagechat.test_recording import make

ANSWER = """A *page table* maps what a program sees to where it lies:

1. the program asks for page 7
2. the table says: frame 213

```python
frame = table[page]
```
"""

SAMPLE = Sample(
    used=0.1, shared=0.05, cached=0.0, waste=0.2, tokens_per_s=23.4, running=1, waiting=0, hit=0.5, preemptions=0
)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that depends on the speed of this machine stands still."""
    monkeypatch.setattr(link, "SUBSCRIBE_S", 0)
    monkeypatch.setattr(pace, "SHARE", 100.0)
    monkeypatch.setattr(PoolView, "tokens_per_s", lambda self: 23.4)
    monkeypatch.setattr(PoolView, "age", lambda self, block: (3.0, 2.0))
    monkeypatch.setattr(Rate, "tokens_per_s", 23.4)
    monkeypatch.setattr(Badge, "sync", lambda self, state, rate: self.show(self._content(state)))
    monkeypatch.setattr("pagechat.app.pool_view.FLASH_S", 0.0)
    monkeypatch.setattr(Gauges, "sample", lambda self, view: None)


@pytest.fixture
def app(db: Path, steady: None) -> PagechatApp:
    """The app over a fake daemon."""
    daemon = FakeDaemon(keeps=True, script=lambda _: [ANSWER])
    return PagechatApp(daemon.connect, Store(db))


@pytest.fixture
def touring(db: Path, steady: None) -> PagechatApp:
    """The guided tour over one with the tour's pool."""
    daemon = FakeDaemon(num_blocks=48, keeps=True, step_s=0.002, script=lambda _: ["w "] * 90)
    return PagechatApp(daemon.connect, Store(db), tour=True)


@pytest.fixture
def replaying(tmp_path: Path, steady: None) -> ReplayApp:
    """A recording of two requests."""
    make(tmp_path / "recording")
    return ReplayApp(load(tmp_path / "recording"))


async def begin_tour(pilot: Pilot[None]) -> None:
    """Its first step has been seen."""
    app = pilot.app
    assert isinstance(app, PagechatApp)
    await wait_until(pilot, lambda: app.tour is not None and app.tour.seen)
    tell_facts(app, 90)
    await settle(pilot)


async def stop_replay(pilot: Pilot[None]) -> None:
    """In the middle of its first request, a block selected."""
    app = pilot.app
    assert isinstance(app, ReplayApp)
    await wait_until(pilot, lambda: isinstance(app.screen, ReplayScreen))
    await pilot.press("space", "b", *["full_stop"] * 9, "s")
    assert (app.player.playing, app.player.index) == (False, 9)
    app.screen.query_one("#map", BlockMap).select(1)
    app.screen._gauges.samples.extend([SAMPLE] * 8)  # type: ignore[attr-defined]


async def prepare(pilot: Pilot[None]) -> None:
    """A chat with one answer, and its fork in front."""
    app = pilot.app
    assert isinstance(app, PagechatApp)
    app.main.composer.cursor_blink = False
    await wait_until(pilot, lambda: app.view.mirror is not None and app.main.client is not None)
    await say(app, pilot, "Explain a page table.")
    await wait_until(pilot, lambda: not app.tabs.streaming)
    tell_facts(app, 128)
    await pilot.press("alt+up", "f")
    await wait_until(pilot, lambda: len(app.tabs.conversations) == 2)
    app.clear_notifications()
    await settle(pilot)


def stop_blinking(app: App[None]) -> None:
    for screen in app.screen_stack:
        for entry in screen.query("Input, TextArea"):
            entry.cursor_blink = False  # type: ignore[attr-defined]


def tell_facts(app: PagechatApp, tokens: int) -> None:
    """Of the last answer, such as they could be."""
    app.tabs.active.messages[-1].facts |= {"ttft_s": 0.21, "total_s": 5.64, "completion_tokens": tokens}
    app.tabs.active.messages[-1].version += 1
    app.tabs.active.changed()


async def settle(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, PagechatApp)
    await wait_until(pilot, lambda: drawn(app))
    app.main.gauges.samples.clear()
    app.main.gauges.samples.extend([SAMPLE] * 8)
    app.main.view.redraw_all()
    app.main._show_texts()
    await pilot.pause()


@pytest.mark.parametrize(
    ("size", "theme"), [((150, 40), "pagechat-dark"), ((120, 36), "paper"), ((80, 24), "high-contrast")]
)
def test_main_screen(app: PagechatApp, snap_compare: Callable[..., bool], size: tuple[int, int], theme: str) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await prepare(pilot)
        app.theme = theme
        await settle(pilot)

    assert snap_compare(app, terminal_size=size, run_before=look)


def test_memory_on_a_small_screen(app: PagechatApp, snap_compare: Callable[..., bool]) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await prepare(pilot)
        await wait_until(pilot, lambda: app.view.mirror is not None and max(app.view.mirror.refs) > 1)  # the fork
        await pilot.press("f3", "s", "6")
        await wait_until(pilot, lambda: app.main.block_map.selected is not None)
        await settle(pilot)

    assert snap_compare(app, terminal_size=(80, 24), run_before=look)


def test_settings_screen(app: PagechatApp, snap_compare: Callable[..., bool]) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.view.mirror is not None and app.main.client is not None)
        await settle(pilot)
        await pilot.press("f4")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        stop_blinking(app)
        await pilot.pause()

    assert snap_compare(app, terminal_size=(100, 30), run_before=look)


def test_command_palette(app: PagechatApp, snap_compare: Callable[..., bool]) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await prepare(pilot)
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: isinstance(app.screen, CommandPalette))
        stop_blinking(app)
        await pilot.press(*"mem")
        await wait_until(pilot, lambda: app.screen.query_one(CommandList).option_count)
        await pilot.pause(0.3)  # it lists what it has found, and then the rest

    assert snap_compare(app, terminal_size=(100, 30), run_before=look)


def test_tour(touring: PagechatApp, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(touring, terminal_size=(120, 36), run_before=begin_tour)


def test_replay(replaying: ReplayApp, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(replaying, terminal_size=(120, 36), run_before=stop_replay)
