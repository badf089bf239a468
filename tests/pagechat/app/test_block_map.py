"""The map on the screen is the mirror, after every delta, at every zoom, and cheap to keep so."""

from __future__ import annotations

import random
import time

import pytest
from textual.app import App, ComposeResult

from engine.core import EngineCore
from engine.protocol import AddRequest, SamplingParams
from pagechat.app.letters import Letters
from pagechat.app.pool_view import PoolView
from pagechat.app.widgets.block_map import LINES_A_FRAME, BlockMap
from pagechat.app.widgets.map_grid import DENSITY
from pagechat.app.widgets.map_styles import FILLS
from tests.engine.fakes import ContentExecutor
from tests.pagechat.app.waiting import screen_text, wait_until


class MapApp(App[None]):
    CSS = "BlockMap { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"

    def __init__(self, num_blocks: int, whole: bool = True) -> None:
        super().__init__()
        self.core = EngineCore(
            ContentExecutor(num_blocks, 16), num_blocks=num_blocks, block_size=16, max_context=10**6, vocab_size=256
        )
        self.view = PoolView(Letters())
        self.view.reset(self.core.snapshot(1))
        self.map = BlockMap(self.view)
        self.map.whole = whole

    def get_theme_variable_defaults(self) -> dict[str, str]:
        names = [
            *(f"block-owner-{n}" for n in range(1, 9)),
            "block-free",
            "block-cached",
            "block-shared",
            "block-cow",
            "muted",
        ]
        return {name: f"#{40 + 9 * number:02x}80a0" for number, name in enumerate(names)}

    def compose(self) -> ComposeResult:
        yield self.map

    def ask(self, name: str, prompt: list[int], tokens: int) -> None:
        sampling = SamplingParams(max_tokens=tokens, temperature=0, seed=0)
        self.core.add(AddRequest(request_id=name, session=name, prompt=tuple(prompt), sampling=sampling))

    def step(self) -> None:
        _, report = self.core.step()
        if report is not None:
            self.view.apply(report)


def glyphs(block_map: BlockMap) -> str:
    """The whole map, line by line as drawn, labels left out, one string."""
    width = block_map.grid.label_width
    lines = [block_map._strips.get(y) or block_map._draw(y) for y in range(block_map.virtual_size.height)]
    return "".join(line.text[width:].rstrip() for line in lines)


def expected(view: PoolView) -> str:
    """One glyph a block straight from the mirror."""
    mirror = view.mirror
    assert mirror is not None
    text = ""
    for block in range(1, mirror.num_blocks + 1):
        state = mirror.state(block)
        if state in ("free", "cached"):
            text += "·" if state == "free" else ":"
            continue
        letter = view.letters.get(mirror.tables[mirror.owners(block)[0][0]].session)
        if state == "shared":
            text += letter
        else:
            eighths = -(-mirror.fill(block) * 8 // 16)
            text += letter.lower() if mirror.fill(block) == 16 else FILLS[min(7, eighths)]
    return text


async def test_the_map_is_the_mirror_after_every_step() -> None:
    app = MapApp(200)
    rng = random.Random(5)
    async with app.run_test(size=(50, 20)) as pilot:
        app.map.choose_zoom(1)
        shared = [rng.randrange(256) for _ in range(40)]
        for number in range(60):
            if number % 6 == 0:
                app.ask(f"chat{number}", [*shared[: rng.choice([16, 32, 40])], number], rng.randrange(1, 40))
            app.step()
            app.map.sync()
            await pilot.pause()
            assert glyphs(app.map) == expected(app.view)
        drawn = glyphs(app.map)
        assert set("·:") <= set(drawn)
        assert any(c.isupper() for c in drawn)


async def test_nothing_is_drawn_when_nothing_changed() -> None:
    app = MapApp(200)
    async with app.run_test(size=(50, 20)) as pilot:
        app.map.sync()
        await pilot.pause()
        drawn: list[int] = []
        draw = app.map._draw
        app.map._draw = lambda line: (drawn.append(line), draw(line))[1]  # type: ignore[method-assign]
        for _ in range(10):
            app.map.sync()
            await pilot.pause()
        assert drawn == []


async def test_one_new_block_redraws_its_line_only() -> None:
    app = MapApp(400)
    async with app.run_test(size=(50, 20)) as pilot:
        app.map.sync()
        await pilot.pause()
        drawn: list[int] = []
        draw = app.map._draw
        app.map._draw = lambda line: (drawn.append(line), draw(line))[1]  # type: ignore[method-assign]
        app.ask("a", [1, 2, 3], 2)
        app.step()
        app.map.sync()
        await wait_until(pilot, lambda: drawn)
        assert set(drawn) == {0}


@pytest.mark.parametrize(("zoom", "cells"), [(1, 1), (2, 2)])
async def test_a_click_selects_the_block_under_it(zoom: int, cells: int) -> None:
    app = MapApp(200)
    async with app.run_test(size=(50, 20)) as pilot:
        app.map.choose_zoom(zoom)
        await pilot.click(BlockMap, offset=(app.map.grid.label_width + 3 * cells, 1))
        assert app.map.selected == app.map.grid.per_row + 4


async def test_arrows_move_the_cursor_and_the_view_follows() -> None:
    app = MapApp(2000)
    async with app.run_test(size=(50, 10)) as pilot:
        app.map.choose_zoom(1)
        app.map.focus()
        await pilot.press("right", "right", "down")
        assert app.map.selected == 2 + app.map.grid.per_row
        await pilot.press("end")
        assert app.map.selected == 2000
        await wait_until(pilot, lambda: app.map.scroll_offset.y > 0)
        await pilot.press("home", "left", "up")
        assert app.map.selected == 1


@pytest.mark.parametrize(("num_blocks", "zoom"), [(100, 2), (1000, 1), (16_384, 0), (100_000, DENSITY)])
async def test_the_first_zoom_follows_the_size_of_the_pool(num_blocks: int, zoom: int) -> None:
    app = MapApp(num_blocks)
    async with app.run_test(size=(60, 20)):
        app.map.sync()
        assert app.map.zoom == zoom


async def test_without_colour_every_state_has_its_own_glyph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = MapApp(16_384)
    async with app.run_test(size=(60, 20)) as pilot:
        app.ask("a", [1] * 40, 3)
        app.step()
        app.map.sync()
        await pilot.pause()
        assert app.map.zoom == 1  # the overview would be colour only
        assert glyphs(app.map).startswith("aa▄·")
        app.map.focus()
        await pilot.press("minus")
        # two rows of blocks a line: the three used ones are in the upper row
        assert glyphs(app.map).startswith("▀▀▀·")
        await pilot.press("minus")
        # all of the pool on the screen: the three share a cell with some ten others
        assert glyphs(app.map).startswith("▁·")


async def test_zoom_two_shows_letter_and_fill() -> None:
    app = MapApp(64)
    async with app.run_test(size=(60, 20)) as pilot:
        app.ask("a", [1] * 20, 3)
        app.step()
        app.map.sync()
        await pilot.pause()
        assert glyphs(app.map).startswith("a█a▂· ")


async def test_a_resize_keeps_the_map_right() -> None:
    app = MapApp(300)
    async with app.run_test(size=(80, 20)) as pilot:
        app.ask("a", [1] * 100, 3)
        app.step()
        app.map.choose_zoom(1)
        for width, height in ((40, 10), (11, 3), (120, 40), (9, 2)):
            await pilot.resize_terminal(width, height)
            app.map.sync()
            await pilot.pause()
            assert glyphs(app.map) == expected(app.view)


async def test_sixteen_thousand_blocks_are_redrawn_in_time() -> None:
    # in CPU time, which other processes do not stretch (much): 50 ms and 5 ms on a Zen 3
    app = MapApp(16_384)
    async with app.run_test(size=(130, 70)) as pilot:
        for number in range(20):
            app.ask(f"chat{number}", [number] * 2000, 2)
        while app.core.has_work:
            app.step()
        app.map.sync()
        await pilot.pause()
        started = time.process_time()
        app.map._strips.clear()
        for line in range(app.map.virtual_size.height):
            app.map._draw(line)
        assert time.process_time() - started < 0.5
        app.ask("last", [1, 2, 3], 1)
        app.step()
        started = time.process_time()
        app.map.sync()
        assert time.process_time() - started < 0.1


async def test_a_hundred_thousand_blocks_fit_on_one_screen_and_only_changed_cells_are_made_again() -> None:
    app = MapApp(100_000)
    app.view._clock = lambda: 0.0  # no flash ends meanwhile
    async with app.run_test(size=(100, 40)) as pilot:
        for number in range(10):
            app.ask(f"chat{number}", [number] * 8000, 2)
        while app.core.has_work:
            app.step()
        app.map.sync()
        await pilot.pause()
        assert app.map.virtual_size.height <= 40
        block_at_corner = app.map.block_at(app.map.grid.label_width, 1)
        assert block_at_corner is not None
        assert app.map.line_of(block_at_corner) == 1
        for line in range(app.map.virtual_size.height):
            app.map.render_line(line)
        made: list[int] = []
        group = app.view.group
        app.view.group = lambda first, end: (made.append(first), group(first, end))[1]  # type: ignore[method-assign]
        app.ask("last", [1, 2, 3], 1)
        app.step()
        app.map.sync()
        for line in range(app.map.virtual_size.height):
            app.map.render_line(line)
        assert 0 < len(made) <= 3


async def test_the_cursor_jumps_to_shared_blocks_and_to_the_largest_hole() -> None:
    app = MapApp(64)
    async with app.run_test(size=(60, 20)) as pilot:
        for name in ("a", "b"):
            app.ask(name, [*range(32), ord(name)], 20)
        app.step()
        app.map.sync()
        app.map.focus()
        mirror = app.view.mirror
        assert mirror is not None
        shared = [block for block in range(1, 65) if mirror.refs[block] > 1]
        assert len(shared) == 2
        await pilot.press("s", "s")
        assert app.map.selected == shared[1]
        await pilot.press("s")
        assert app.map.selected == shared[0]
        await pilot.press("f")
        assert app.map.selected is not None
        run = range(app.map.selected, app.map.selected + mirror.status().largest_free_run)
        assert all(mirror.refs[block] == 0 for block in run)


async def test_a_map_that_changes_everywhere_is_drawn_in_turns() -> None:
    app = MapApp(2000)
    async with app.run_test(size=(50, 40)) as pilot:
        app.map.choose_zoom(1)
        app.map.sync()
        await pilot.pause()
        app.ask("a", [1] * 16 * 1000, 2)
        app.step()
        while app.core.has_work:
            app.step()
        drawn: list[int] = []
        draw = app.map._draw
        app.map._draw = lambda line: (drawn.append(line), draw(line))[1]  # type: ignore[method-assign]
        app.map.sync()
        await pilot.pause()
        assert len(set(drawn)) <= LINES_A_FRAME
        for _ in range(10):
            app.map.sync()
            await pilot.pause()
        assert glyphs(app.map) == expected(app.view)
        assert set(range(25)) <= set(drawn)  # 1,000 of 2,000 blocks, 40 a line


# -- the part that is used -----------------------------------------------------------------------


async def test_a_large_pool_shows_what_is_used_and_tells_of_the_rest() -> None:
    app = MapApp(5800, whole=False)
    async with app.run_test(size=(64, 24)) as pilot:
        app.ask("a", [1] * 100, 3)
        app.step()
        app.map.sync()
        await pilot.pause()
        # seven blocks of 5,800: letters with their fill, three rows, and how many more there are
        assert app.map.zoom == 2
        assert app.map.grid.lines == 3
        text = screen_text(app)
        assert f"and {5800 - app.map.grid.places:,} more, all free" in text
        assert text.splitlines()[0].split()[1].startswith("a█a█a█a█a█a█a▂")
        # all of the pool is a key away
        app.map.focus()
        await pilot.press("0")
        assert app.map.grid.places == 5800
        assert "more, all free" not in screen_text(app)
        await pilot.press("0")
        assert app.map.grid.places < 100


async def test_the_shown_part_grows_with_what_is_used_and_zooms_out_when_it_has_to() -> None:
    app = MapApp(5800, whole=False)
    async with app.run_test(size=(64, 14)) as pilot:
        zooms, lines = [], []
        for number in range(40):
            app.ask(f"c{number}", [number] * 16 * 20, 1)
            app.step()
            app.map.sync()
            await pilot.pause()
            zooms.append(app.map.zoom)
            lines.append(app.map.grid.lines)
            last = max(
                block for block in range(1, 5801) if app.view.mirror.refs[block] or block in app.view.mirror.cached
            )
            assert app.map.grid.places > last
        assert zooms == sorted(zooms, reverse=True)
        assert (zooms[0], zooms[-1]) == (2, 1)
        assert min(lines) >= 3


async def test_a_block_behind_the_shown_part_can_be_picked() -> None:
    app = MapApp(5800, whole=False)
    async with app.run_test(size=(64, 24)):
        app.map.sync()
        app.map.select(5000)
        assert app.map.selected == 5000
        assert app.map.grid.places == 5800


async def test_a_pool_that_fits_at_its_largest_is_shown_whole() -> None:
    app = MapApp(200, whole=False)
    async with app.run_test(size=(64, 24)):
        app.map.sync()
        assert (app.map.zoom, app.map.grid.places, app.map.rest) == (2, 200, 0)
