"""The memory in two lines, beside the chat of a small terminal; and what the legend tells."""

from __future__ import annotations

from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.map_grid import DENSITY, LETTERS, LETTERS_AND_FILL, OVERVIEW
from pagechat.app.widgets.memory_pane import legend, seen
from pagechat.app.widgets.memory_strip import MemoryStrip, strip_of
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_panels import Pool
from tests.pagechat.app.waiting import say, screen_text, wait_until


async def test_a_small_terminal_has_the_memory_in_two_lines_beside_the_chat(open_app: OpenApp) -> None:
    daemon = FakeDaemon(num_blocks=5800, keeps=True)
    async with open_app(daemon, size=(80, 24)) as (app, pilot):
        await say(app, pilot, "hello " * 12)
        await wait_until(pilot, lambda: not app.tabs.streaming and "aaaaa" in screen_text(app))
        strip = app.main.query_one(MemoryStrip)
        assert strip.region.height == 2
        figures, blocks = str(strip.visual).split("\n")
        assert figures.startswith("memory  used 5  shared 0")
        assert blocks == f"{'a' * 5} 5,795 more free"
        await pilot.click(MemoryStrip)
        await wait_until(pilot, lambda: app.focused is app.main.query_one(BlockMap))
        await pilot.resize_terminal(140, 40)
        await wait_until(pilot, lambda: strip.region.height == 0)


def test_the_strip_is_as_wide_as_it_may_be() -> None:
    pool = Pool(200)
    pool.run("essay", 40, 4)
    pool.core.live_sessions.fork("essay", "fork")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    pool.run("fork", 1500, 4)
    used = max(block for block in range(1, 201) if pool.view.mirror.refs[block])  # type: ignore[union-attr]
    assert strip_of(pool.view, 0, 60).plain == "all 200 blocks are free"
    for width in (20, 40, 80, 300):
        assert strip_of(pool.view, used, width).cell_length <= width
    assert strip_of(pool.view, used, 300).plain.startswith("A" * 2)


def test_the_legend_tells_only_what_this_map_draws() -> None:
    pool = Pool(32)
    assert legend([], 80, "id", LETTERS, seen(pool.view)).plain.split() == ["legend", "·", "free"]
    pool.run("essay", 40, 4)
    letters = legend([], 80, "id", LETTERS, seen(pool.view)).plain
    assert "filling" in letters
    assert not any(word in letters for word in ("shared", "cached", "copied", "evicted", "preempted"))
    pool.core.live_sessions.fork("essay", "fork")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    pool.run("fork", 45, 4)
    for zoom, word in (
        (LETTERS, "filling"),
        (LETTERS_AND_FILL, "how full"),
        (OVERVIEW, "two blocks"),
        (DENSITY, "in use"),
    ):
        assert word in legend([], 120, "id", zoom, seen(pool.view)).plain
    assert "copied" in legend([], 120, "id", LETTERS, seen(pool.view)).plain
    assert "by owner" in legend([], 120, "owner", LETTERS, seen(pool.view)).plain
