"""The frugal compositor draws what Textual's own draws, whatever changed, and asks hidden lines of nobody."""

from __future__ import annotations

import random

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.pilot import Pilot
from textual.widget import Widget

from pagechat.app.app import PagechatApp
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import drawn, say, wait_until

ANSWER = (
    "# Pages\n\n- one\n- 日本語 two\n\n```python\nframe = table[page]\n```\n\nAnd a paragraph that is wrapped. " * 6
)


async def a_full_screen(app: PagechatApp, pilot: Pilot[None]) -> None:
    await say(app, pilot, "a question\nof two lines")
    await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
    await pilot.press("alt+up")
    await pilot.pause()


async def test_whole_screens_are_the_same(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(script=lambda _: [ANSWER])) as (app, pilot):
        await a_full_screen(app, pilot)
        for width, height in ((160, 45), (120, 36), (80, 24), (30, 9)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            ours = app.main._compositor
            everything = (Region(0, 0, width, height), lambda y: True)
            assert ours._render_chops(*everything) == Compositor._render_chops(ours, *everything)


async def test_changes_are_the_same_bytes_for_the_terminal(open_app: OpenApp) -> None:
    chance = random.Random(7)
    async with open_app(FakeDaemon(script=lambda _: [ANSWER])) as (app, pilot):
        await a_full_screen(app, pilot)
        ours, width, height = app.main._compositor, *app.size
        for _ in range(40):
            regions = set()
            for _ in range(chance.randint(1, 4)):
                x, y = chance.randrange(width), chance.randrange(height)
                region = Region(x, y, chance.randint(1, width - x), chance.randint(1, height - y))
                regions.add(region)
            updates = []
            for kind in (type(ours), Compositor):
                ours._dirty_regions = set(regions)
                update = kind.render_partial_update(ours)
                assert isinstance(update, ChopsUpdate)
                updates.append(update.render_segments(app.console))
            assert on_screen(updates[0], width, height) == on_screen(updates[1], width, height)
        ours._dirty_regions = set()
        assert ours.render_partial_update() is None


def on_screen(update: str, width: int, height: int) -> list[str]:
    """What a terminal shows that was empty before."""
    import pyte

    screen = pyte.Screen(width, height)
    pyte.Stream(screen).feed(update)
    return list(screen.display)


async def test_what_is_covered_is_not_asked_for_lines(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(script=lambda _: [ANSWER])) as (app, pilot):
        await a_full_screen(app, pilot)
        asked: list[tuple[Widget, Region]] = []
        for widget in app.main._compositor.visible_widgets:
            original = widget.render_lines

            def render(crop: Region, widget: Widget = widget, original=original):  # type: ignore[no-untyped-def]
                asked.append((widget, crop))
                return original(crop)

            widget.render_lines = render  # type: ignore[method-assign]
        line = app.main.block_map.region.y + 3
        app.main._compositor._dirty_regions = {Region(app.main.block_map.region.x, line, 10, 1)}
        app.main._compositor.render_partial_update()
        assert asked == [(app.main.block_map, Region(0, 3, app.main.block_map.region.width, 1))]
