"""The map in other orders: by owner and by age; every block stands somewhere, and names stay right."""

from __future__ import annotations

import time

import pytest

from pagechat.app.arrangement import Arrangement
from pagechat.app.widgets.block_map import brief
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_block_map import MapApp
from tests.pagechat.app.test_messages import answered, command
from tests.pagechat.app.test_panels import Pool
from tests.pagechat.app.waiting import screen_text, wait_until


def shown(arrangement: Arrangement, count: int) -> list[int]:
    return [arrangement.block(place) for place in range(1, count + 1)]


def two_chats() -> Pool:
    """Chats that took blocks in turn, so that those of one do not lie together; one was closed and is cached."""
    pool = Pool(32)
    pool.run("gone", 100, 1)
    pool.now = 5.0
    pool.run("essay", 40, 30, steps=1)
    pool.now = 10.0
    pool.run("fork", 17, 40)
    pool.core.sessions.close("gone")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    return pool


def test_by_owner_each_table_stands_in_its_own_order_then_cached_then_free() -> None:
    pool = two_chats()
    mirror = pool.view.mirror
    assert mirror is not None
    arrangement = Arrangement(pool.view, lambda: pool.now)
    arrangement.choose("owner")
    letters = {pool.view.letters.get(table.session): table.blocks for table in mirror.tables.values()}
    owned = list(dict.fromkeys(block for _, blocks in sorted(letters.items()) for block in blocks))
    order = shown(arrangement, 32)
    assert order[: len(owned)] == owned != sorted(owned)
    assert {mirror.state(block) for block in order[len(owned) : len(owned) + len(mirror.cached)]} == {"cached"}
    assert sorted(order) == list(range(1, 33))
    assert [arrangement.place(block) for block in order] == list(range(1, 33))


def test_by_age_the_newest_content_stands_first_and_free_blocks_last() -> None:
    pool = two_chats()
    mirror = pool.view.mirror
    assert mirror is not None
    arrangement = Arrangement(pool.view, lambda: pool.now)
    arrangement.choose("age")
    ages = [pool.view.age(block) for block in shown(arrangement, 32) if mirror.state(block) != "free"]
    assert [age[0] for age in ages if age] == sorted(age[0] for age in ages if age)
    assert {age[0] for age in ages if age} == {0.0, 5.0, 10.0}
    assert all(mirror.state(block) == "free" for block in shown(arrangement, 32)[len(ages) :])


def test_blocks_move_now_and_then_not_with_every_change() -> None:
    pool = two_chats()
    arrangement = Arrangement(pool.view, lambda: pool.now)
    arrangement.choose("owner")
    before = shown(arrangement, 32)
    pool.run("late", 44, 30)
    assert not arrangement.refresh()
    assert shown(arrangement, 32) == before
    pool.now += 3
    assert arrangement.refresh()
    assert shown(arrangement, 32) != before
    pool.now += 3
    assert not arrangement.refresh(), "nothing has changed since"


async def test_the_cursor_names_the_block_it_stands_on_in_every_order() -> None:
    app = MapApp(200)
    async with app.run_test(size=(50, 20)) as pilot:
        app.map.choose_zoom(1)
        for name in ("b", "a"):
            app.ask(name, list(name.encode()) * 50, 5)
            app.step()
        await pilot.pause()
        for order in ("id", "owner", "age"):
            app.map.set_order(order)
            for zoom in (-1, 0, 1, 2):
                app.map.choose_zoom(zoom)
                for block in (1, 7, 12, 90, 200):
                    y = app.map.line_of(block)
                    row = [app.map.block_at(x, y) for x in range(app.map.grid.label_width, 50)]
                    assert block in row or any(found and abs(found - block) < app.map.grid.group for found in row), zoom
        # moving goes by places: from the first place to the second, whichever blocks stand there
        app.map.choose_zoom(1)
        app.map.set_order("age")
        app.map.action_jump(1)
        assert app.map.selected == app.map.arrangement.block(1)
        app.map.action_move(1, 0)
        assert app.map.selected == app.map.arrangement.block(2)


def test_a_large_pool_is_arranged_in_a_moment() -> None:
    pool = Pool(100_000)
    arrangement = Arrangement(pool.view)
    best = 9.0
    for _ in range(3):
        began = time.perf_counter()
        arrangement.choose("owner")
        arrangement.choose("age")
        best = min(best, time.perf_counter() - began)
    assert best < 0.5  # both; 0.045 s for 65,536 blocks in use, on two busy cores


async def test_the_order_is_chosen_by_key_and_told_by_the_legend(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(keeps=True), size=(140, 40)) as (app, pilot):
        await answered(app, pilot, "hello")
        await pilot.press("f3", "o")
        assert app.main.block_map.arrangement.order == "owner"
        await wait_until(pilot, lambda: "by owner" in screen_text(app).split("legend")[1])
        await command(app, pilot, "/order age")
        assert app.main.block_map.arrangement.order == "age"
        await command(app, pilot, "/order size")
        await wait_until(pilot, lambda: "not by size" in screen_text(app))
        await pilot.press("f3", "o")
        await wait_until(pilot, lambda: "by age" not in screen_text(app).split("legend")[1])


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (9e9, "99d")])
def test_ages_in_front_of_lines_are_brief(seconds: float, text: str) -> None:
    assert brief(seconds) == text
