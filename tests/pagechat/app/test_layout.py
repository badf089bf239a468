"""The screen at every size, and the lines around the map."""

from __future__ import annotations

import time

import pytest
from textual import constants
from textual._xterm_parser import XTermParser
from textual.events import Key

from pagechat.app import pool_view
from pagechat.app.keys import read_alt_keys
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.memory_pane import MemoryPane
from pagechat.protocol import ChatMessage
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import say, screen_text, wait_until


async def test_wide_shows_chat_and_memory_side_by_side(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(120, 36)) as (app, pilot):
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: "echo hello" in screen_text(app) and "contiguous" in screen_text(app))
        assert "smollm2 · cpu float32 · 16-token blocks" in screen_text(app)


async def test_narrow_shows_one_at_a_time(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        assert app.main.query_one(Composer).region.height > 0
        assert "contiguous" not in screen_text(app)
        await pilot.press("f3")
        await wait_until(pilot, lambda: "contiguous" in screen_text(app))
        assert app.focused is app.main.query_one(BlockMap)
        assert app.main.query_one(Composer).region.height == 0
        await pilot.press("f3")
        await wait_until(pilot, lambda: "contiguous" not in screen_text(app))
        assert app.focused is app.main.query_one(Composer)


async def test_a_terminal_may_become_wide_and_narrow_again(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        await pilot.resize_terminal(140, 40)
        await wait_until(pilot, lambda: "contiguous" in screen_text(app))
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: "contiguous" not in screen_text(app))


async def test_any_size_works(open_app: OpenApp) -> None:
    daemon = FakeDaemon(script=lambda _: ["日本語 and 👍 ", "- a\n- b\n", "```\ncode\n```"])
    async with open_app(daemon, size=(10, 5)) as (app, pilot):
        for size in ((10, 5), (1, 1), (200, 3), (7, 30)):
            await pilot.resize_terminal(*size)
            await pilot.press("ctrl+n")
            await say(app, pilot, "日本語")
            await wait_until(pilot, lambda: not app.tabs.streaming)
            for key in ("f3", "right", "minus", "f3"):
                await pilot.press(key)
            await pilot.pause(0.1)
        assert app.is_running


async def test_the_lines_beside_the_map_tell_the_truth(open_app: OpenApp) -> None:
    # given one chat of 40 prompt tokens that has generated 3: 43 tokens, the last one not yet in a block,
    # so 42 tokens in 3 blocks of 16, of a pool of 256 whose sequences may grow to 2,048 tokens = 128 blocks
    daemon = FakeDaemon(step_s=0, script=lambda _: ["x "] * 9)
    async with open_app(daemon, size=(140, 40)) as (app, pilot):
        await say(app, pilot, "q" * 40)
        daemon.go(3)
        await wait_until(pilot, lambda: app.view.mirror and app.view.mirror.step == 2)
        await wait_until(pilot, lambda: "used 3" in screen_text(app))
        text = screen_text(app)
        assert "shared 0   cached 0   free 253   waste 12.5 %" in text  # 6 of 48 slots
        assert "largest free run 253" in text
        assert "0:001 1:002 2:003 (10/16)" in text
        assert "2 requests reserving 2,048 tokens each" in text  # 256 / 128
        assert "85 like the 1 held now (3 blocks)" in text  # 256 / 3
        app.main.query_one(BlockMap).select(3)
        await wait_until(pilot, lambda: "3 · ref 1 · owner A " in screen_text(app))
        assert " 1:2 · tokens 10/16" in screen_text(app)  # sequence 1, logical block 2
        daemon.go(9)


async def test_brackets_walk_through_the_blocks_of_the_chat(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["x "] * 9)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "q" * 40)
        daemon.go(1)
        await wait_until(pilot, lambda: app.view.mirror and app.view.mirror.tables)
        await pilot.press("f3", "right_square_bracket")
        block_map = app.main.query_one(BlockMap)
        assert block_map.selected == 1
        await pilot.press("right_square_bracket")
        assert block_map.selected == 2
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert block_map.selected == 3


async def test_foreign_sessions_are_in_the_legend_by_name(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["x "] * 9)
    async with open_app(daemon, size=(140, 40)) as (app, pilot):
        client = await daemon.connect()
        stream = client.chat([ChatMessage(role="user", content="q" * 40)], session="batch [/x]", request_id="r")
        await anext(stream)
        daemon.go(1)
        await wait_until(pilot, lambda: "b batch [/x]" in screen_text(app))
        await stream.aclose()


async def test_the_memory_pane_is_quiet_when_nothing_happens(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_view, "RATE_WINDOW_S", 0.5)
    async with open_app(FakeDaemon()) as (app, pilot):
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await wait_until(pilot, lambda: not app.view.moving)
        await pilot.pause(0.7)  # the map and the lines have seen it
        pane, drawn = app.main.query_one(MemoryPane), []
        for line in pane.query("Line"):
            line.update = drawn.append  # type: ignore[method-assign]
        block_map = app.main.query_one(BlockMap)
        draw = block_map._draw
        block_map._draw = lambda line: (drawn.append(line), draw(line))[1]  # type: ignore[method-assign]
        for _ in range(15):
            await pilot.pause(0.1)
        assert drawn == []


def test_escape_and_a_digit_is_alt_and_the_digit() -> None:
    read_alt_keys()
    parser = XTermParser()
    events = list(parser.feed("\x1b3"))
    time.sleep(2 * constants.ESCAPE_DELAY)  # the parser waits so long for the rest of a sequence
    events += list(parser.tick())
    assert [event.key for event in events if isinstance(event, Key)] == ["alt+3"]
