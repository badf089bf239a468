"""The ghost map: what other policies would keep of the same memory, drawn as regions."""

from __future__ import annotations

from engine.protocol import ShadowRegion
from pagechat.app import ghosts
from pagechat.app.letters import Letters
from pagechat.app.pool_view import PoolView
from pagechat.app.screens.ghosts import GhostScreen
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_panels import Pool
from tests.pagechat.app.waiting import say, screen_text, wait_until


def glyphs(kept: list[ShadowRegion], slots: int, cells: int) -> str:
    return "".join(cell.glyph for cell in ghosts.regions(PoolView(Letters()), kept, slots, cells))


def test_regions_show_tokens_what_is_kept_and_what_is_never_used() -> None:
    # given 100 slots: 40 for one chat (10 tokens, at most 30), 20 for another (none yet, all may come)
    kept = [ShadowRegion(0, 40, 10, 30, "x"), ShadowRegion(50, 20, 0, 20, "y")]
    assert glyphs(kept, 100, 20) == "aa▒▒▒▒░░··▒▒▒▒······"
    assert glyphs(kept, 100, 10) == "a▒▒░·▒▒···"


def test_a_region_too_small_for_a_cell_is_still_seen() -> None:
    assert glyphs([ShadowRegion(0, 3, 1, 2, "x")], 1000, 10) == "a·········"


def test_the_pool_itself_is_drawn_in_the_same_scale() -> None:
    pool = Pool(32)
    pool.run("essay", 40, 4)  # 3 blocks
    pool.core.live_sessions.fork("essay", "fork")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    mirror = pool.view.mirror
    assert mirror is not None
    for cells, text in ((64, "AAAAAA"), (32, "AAA"), (16, "AA")):
        drawn = "".join(cell.glyph for cell in ghosts.blocks(pool.view, mirror, cells))
        assert drawn == text + "·" * (cells - len(text))


async def test_the_screen_draws_every_policy_while_answers_come(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0.01, num_blocks=256, script=lambda _: ["word "] * 1000)
    async with open_app(daemon, size=(120, 40)) as (app, pilot):
        await pilot.press("f3", "g")
        await wait_until(pilot, lambda: isinstance(app.screen, GhostScreen))
        await wait_until(pilot, lambda: "No request is live" in screen_text(app))
        await pilot.press("escape")
        await say(app, pilot, "q" * 30)
        await wait_until(pilot, lambda: any(shadow.regions for shadow in app.view.shadows))
        await pilot.press("f3", "g")
        await wait_until(pilot, lambda: "maximum    holds 1 of 1" in screen_text(app))
        text = screen_text(app)
        for name in ("paged ", "oracle ", "power of 2 ", "maximum "):
            assert f"{name:<11}holds 1 of 1" in text
        # 4,096 slots, half of them reserved by the maximum of 2,048: half of its lines, those that can come as ▒
        below = text.split("maximum")[1]
        assert below.count("▒") > text.split("maximum")[0].split("oracle")[1].count("▒") / 2 > 0
        assert below.count("░") > 0
        await pilot.resize_terminal(40, 12)
        await wait_until(pilot, lambda: "holds 1 of 1" in screen_text(app))
