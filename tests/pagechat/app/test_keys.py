"""What the keys do where, what the foot of the screen says of them, and keys of a person's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from pagechat.app.app import PagechatApp
from pagechat.app.commands.all import BY_ID, COMMANDS
from pagechat.app.commands.leader import LETTERS
from pagechat.app.footer import FOOT, Entry, Place, entries, fitting, key_of
from pagechat.app.keymap import clashes, load
from pagechat.app.screens.help import HelpScreen
from pagechat.app.screens.leader import LeaderScreen
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.foot import Foot
from pagechat.app.widgets.transcript import Transcript
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import rendered, say, screen_text, wait_until


def foot(app: PagechatApp) -> str:
    return str(app.main.query_one(Foot).visual)


def slow() -> FakeDaemon:
    return FakeDaemon(step_s=0, script=lambda _: [f"w{n} " for n in range(100)])


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_esc_leaves_a_place_first_and_stops_only_from_the_input(open_app: OpenApp, size: tuple[int, int]) -> None:
    daemon = slow()
    async with open_app(daemon, size=size) as (app, pilot):
        await say(app, pilot, "count")
        daemon.go(5)
        await wait_until(pilot, lambda: "w4" in rendered(app))
        for place, kind in (("f3", BlockMap), ("f7", Transcript)):
            await pilot.press(place)
            await wait_until(pilot, lambda kind=kind: isinstance(app.focused, kind))
            await pilot.press("escape")
            await wait_until(pilot, lambda: isinstance(app.focused, Composer))
            assert app.main.composer.region.height
            assert app.tabs.active.streaming
        app.main.composer.text = "/re"  # commands are offered
        await wait_until(pilot, lambda: app.main.query_one("#completions").display)
        await pilot.press("escape")
        assert not app.main.query_one("#completions").display
        assert app.tabs.active.streaming
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.tabs.active.state == "idle")


async def test_choosing_a_message_shows_it_where_there_is_room_for_one(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("f3")
        await wait_until(pilot, lambda: app.focused is app.main.block_map)
        await pilot.press("f7")
        await wait_until(pilot, lambda: app.main.transcript.region.height)
        assert app.focused is app.main.transcript
        assert app.main.transcript.selected is app.tabs.active.messages[-1]
        assert "echo hello" in screen_text(app)


async def test_what_is_done_to_a_message_from_the_map_is_seen(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("f3")
        await app.main.action_command("message.delete")  # from the palette
        await wait_until(pilot, lambda: app.main.transcript.region.height)


async def test_a_panel_from_the_palette_takes_the_keys_where_it_hides_the_input(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        await app.main.action_command("memory.history")
        await wait_until(pilot, lambda: app.main.block_map.region.height)
        assert app.focused is app.main.block_map
    async with open_app(FakeDaemon(), size=(140, 40)) as (app, pilot):
        await app.main.action_command("memory.history")
        await pilot.pause()
        assert isinstance(app.focused, Composer)


# -- the foot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", FOOT)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("editing", [False, True])
def test_every_foot_fits_eighty_cells(place: Place, streaming: bool, editing: bool) -> None:
    found = entries(place, streaming=streaming, editing=editing)

    def key(entry: Entry) -> str:
        return entry.keys or key_of(BY_ID[entry.command].keys, place)

    shown = fitting(found, key, 80)
    assert [entry for _, entry in shown] == list(found)
    assert cell_len(" ".join(f"{key} {entry.word}" for key, entry in shown)) <= 80


async def test_the_foot_tells_the_keys_of_the_place(open_app: OpenApp) -> None:
    daemon = slow()
    async with open_app(daemon, size=(80, 24)) as (app, pilot):
        await wait_until(pilot, lambda: "⏎ Send" in foot(app))
        assert "Stop" not in foot(app)
        await say(app, pilot, "count")
        daemon.go(3)
        await wait_until(pilot, lambda: "esc Stop" in foot(app))
        await pilot.press("f7")
        await wait_until(pilot, lambda: "f Fork" in foot(app))
        for part in ("e Edit", "r Again", "s Many", "b Blocks", "c Copy", "i Facts", "d Delete", "esc Back"):
            assert part in foot(app)
        await pilot.press("f3")
        await wait_until(pilot, lambda: "1-7 Panel" in foot(app))
        for part in ("o Order", "g Ghost", "p First", "enter Text", "space Freeze", "esc Back"):
            assert part in foot(app)
        assert screen_text(app).splitlines()[-1].strip() == foot(app).strip()
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: "Stop" not in foot(app) and "Send" in foot(app))


async def test_a_click_on_the_foot_does_what_the_key_does(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        await wait_until(pilot, lambda: "f3 Memory" in foot(app))
        await pilot.click(Foot, offset=(foot(app).index("Memory"), 0))
        await wait_until(pilot, lambda: app.focused is app.main.block_map)


# -- keys of one's own ---------------------------------------------------------------------------


def own_keys(folder: Path, *lines: str) -> None:
    (folder / "keymap.toml").write_text("\n".join(lines))


def test_our_own_keys_do_not_clash() -> None:
    assert clashes(COMMANDS, {}) == []


def test_clashes_are_told(tmp_path: Path) -> None:
    own_keys(tmp_path, '"chat.new" = "ctrl+t, f6"', '"message.fork" = "e"', '"memory.freeze" = "e"')
    keys, problems = load(tmp_path / "keymap.toml", BY_ID)
    assert problems == []
    told = clashes(COMMANDS, keys)
    assert len(told) == 2
    assert any(text.startswith("f6: chat.new and memory.totals both want it") for text in told)
    assert any(text.startswith("e: message.edit and message.fork both want it") for text in told)


async def test_the_help_and_the_foot_show_the_persons_keys_and_the_names_of_commands(
    open_app: OpenApp, db: Path
) -> None:
    db.parent.mkdir(parents=True, exist_ok=True)
    own_keys(db.parent, '"memory" = "ctrl+t"', '"chat.pin" = "f6"', '"memory.order" = "x"')
    async with open_app(FakeDaemon(), size=(120, 200)) as (app, pilot):
        await wait_until(pilot, lambda: "^t Memory" in foot(app))
        await wait_until(
            pilot, lambda: "chat.pin both want it" in screen_text(app) or "chat.pin and" in screen_text(app)
        )
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: app.focused is app.main.block_map)
        await pilot.press("x")
        assert app.main.block_map.arrangement.order == "owner"
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        shown = screen_text(app)
        assert any("*ctrl+t" in line and line.rstrip(" │").endswith("memory") for line in shown.splitlines())
        assert "*f6" in shown
        assert "message.fork" in shown
        assert "keymap.toml" in shown


async def test_a_command_without_keys_may_get_one(open_app: OpenApp, db: Path) -> None:
    db.parent.mkdir(parents=True, exist_ok=True)
    own_keys(db.parent, '"theme" = "ctrl+t"')
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: app.screen is not app.main)


# -- ways to keys that terminals keep ---------------------------------------------------------------


def test_whatever_needs_a_key_that_terminals_keep_has_another_way() -> None:
    led = set(LETTERS.values())
    for command in COMMANDS:
        keys = [key for key in command.keys.split(",") if key]
        kept = [key for key in keys if key.startswith(("alt+", "ctrl+page")) or (key[0] == "f" and key[1:].isdigit())]
        if kept and len(kept) == len(keys):
            assert command.id in led or command.slash, command.id
    assert {"help", "model", "chat.next", "chat.previous", "chat.left", "chat.right"} <= led


async def test_a_leader_and_a_letter_do_what_the_key_does(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(80, 24)) as (app, pilot):
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: isinstance(app.screen, LeaderScreen))
        assert "Settings of this chat" in screen_text(app)
        await pilot.press("n")
        await wait_until(pilot, lambda: app.screen is app.main and len(app.tabs.conversations) == 2)
        await pilot.press("ctrl+g", "1")
        await wait_until(pilot, lambda: app.tabs.index == 0)
        await pilot.press("ctrl+g", "j")
        await wait_until(pilot, lambda: app.tabs.index == 1)
        await pilot.press("ctrl+g", "h")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("escape", "ctrl+g", "escape")
        await wait_until(pilot, lambda: app.screen is app.main)
        assert app.main.composer.text == ""
