"""Other terminals, other keys, other eyes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from rich.style import Style
from textual.app import App
from textual.widgets import TextArea

from pagechat import settings
from pagechat.app import app as app_module
from pagechat.app import keymap, run
from pagechat.app.app import PagechatApp
from pagechat.app.commands.all import COMMANDS
from pagechat.app.replay import ReplayApp
from pagechat.app.screens.totals import TotalsScreen
from pagechat.recording import load
from pagechat.themes import user_theme_dir
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import drawn, say, screen_text, wait_until
from tests.pagechat.test_recording import make

ANSWER = "- a\n- b\n\n```python\nx = 1\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n[link](https://example.org) *so*\n"


def test_commands_have_names_of_their_own_and_keys_a_terminal_sends() -> None:
    assert len({command.id for command in COMMANDS}) == len(COMMANDS)
    slashes = [command.slash for command in COMMANDS if command.slash]
    assert len(set(slashes)) == len(slashes)
    for place in ("anywhere", "messages", "map"):
        keys = [
            key for command in COMMANDS if command.place.startswith(place) for key in command.keys.split(",") if key
        ]
        assert len(set(keys)) == len(keys), place
    # ctrl+i is tab, ctrl+m enter and ctrl+[ escape on most terminals; shift+enter and ctrl+digits do not arrive
    untyped = {"ctrl+i", "ctrl+m", "ctrl+left_square_bracket", "shift+enter", "ctrl+enter", "ctrl+1"}
    for command in COMMANDS:
        assert not command.keys or set(command.keys.split(",")) - untyped, command.id


async def test_without_unicode_every_glyph_of_ours_is_ascii(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGECHAT_ASCII", "1")
    daemon = FakeDaemon(keeps=True, script=lambda _: [ANSWER])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "q" * 40)
        await wait_until(pilot, lambda: not app.tabs.streaming)
        for key in ("f3", "2", "3", "4", "5", "6", "7"):
            await pilot.press(key)
            await pilot.pause(0.2)
            lines = [strip.apply_filter(app._own_filters[0], app.background_colors[1]) for strip in strips(app)]
            shown = "".join(line.text for line in lines)
            assert shown.isascii(), sorted({letter for letter in shown if not letter.isascii()})


def strips(app: object) -> list:  # type: ignore[type-arg]
    return app.screen._compositor.render_strips()  # type: ignore[attr-defined,no-any-return]


async def test_without_colour_nothing_is_coloured_and_all_can_be_told_apart(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(FakeDaemon(keeps=True, script=lambda _: [ANSWER])) as (app, pilot):
        await say(app, pilot, "q" * 40)
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        for keys in ([], ["alt+up", "up"], ["f3", "right"], ["f1"], ["escape", "f4"]):
            await pilot.press(*keys)
            await pilot.pause(0.1)
            for style in styles(app):
                assert style.color is None or style.color.is_default
                assert style.bgcolor is None or style.bgcolor.is_default
            if keys == ["alt+up", "up"]:
                assert "█ qqq" in screen_text(app)  # the cursor is on the question
            if keys == ["f3", "right"]:
                assert any(style.reverse and style.underline for style in styles(app))  # and on a block
        assert await app.keeper.call(app.keeper.store.recall, "theme") is None


async def test_sixteen_colours_are_the_terminals_own(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM", raising=False)
    async with open_app(FakeDaemon(keeps=True, script=lambda _: [ANSWER])) as (app, pilot):
        assert app.theme == "terminal"
        await say(app, pilot, "q" * 40)
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        for keys in ([], ["f3", "right"], ["f1"], ["escape", "f4"]):
            await pilot.press(*keys)
            await pilot.pause(0.1)
            mixed = {
                (segment.text, str(segment.style))
                for strip in strips(app)
                for segment in strip
                if segment.style is not None and "#" in str(segment.style)
            }
            assert mixed == set()
        assert await app.keeper.call(app.keeper.store.recall, "theme") is None


async def test_a_replay_fits_the_terminal_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "recording")
    recording = load(tmp_path / "recording")
    monkeypatch.setenv("PAGECHAT_ASCII", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    app = ReplayApp(recording)
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: app.player.index > 2)
        lines = [strip.apply_filter(app._own_filters[0], app.background_colors[1]) for strip in strips(app)]
        assert "".join(line.text for line in lines).isascii()
        assert all(style.color is None or style.color.is_default for style in styles(app))
        assert all(style.bgcolor is None or style.bgcolor.is_default for style in styles(app))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for asked, worn in ((None, "terminal"), ("paper", "paper")):
        app = ReplayApp(recording, theme=asked)
        async with app.run_test(size=(100, 30)):
            assert app.theme == worn


def styles(app: App[None]) -> list[Style]:
    return [segment.style for strip in strips(app) for segment in strip if segment.style is not None]


def test_the_mouse_can_be_left_to_the_terminal(monkeypatch: pytest.MonkeyPatch, folders: Path) -> None:
    asked = []
    monkeypatch.setattr(PagechatApp, "run", lambda self, mouse: asked.append(mouse))
    for value in ("", "0", "1"):
        monkeypatch.setenv("PAGECHAT_NO_MOUSE", value)
        run(run_dir=None, daemon_args=[], theme=None)
    assert asked == [True, True, False]


async def test_a_users_keys_take_the_place_of_ours_and_wrong_ones_are_told(open_app: OpenApp, folders: Path) -> None:
    file = keymap.path()
    assert file.parent == settings.default_path().parent
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('"memory" = "f9"\n"chat.fly" = "f10"\n"chat.new" = 3\n')
    async with open_app(FakeDaemon()) as (app, pilot):
        await wait_until(pilot, lambda: "'chat.fly'" in screen_text(app))  # one word: lines break where the path does
        told = [one.message for one in app._notifications]
        assert told[0] == f"{file}: there is no command 'chat.fly'"
        assert told[1].startswith(f"{file}: chat.new needs keys")
        await pilot.press("f9")
        assert app.focused is app.main.block_map
        await pilot.press("f9", "f3")
        assert app.focused is app.main.composer


async def test_a_theme_file_that_changes_is_worn_at_once(
    open_app: OpenApp, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "THEMES_S", 0.1)
    good = resources.files("themes").joinpath("pagechat-dark.toml").read_text()
    file = user_theme_dir() / "mine.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(good.replace('"pagechat-dark"', '"mine"'))
    async with open_app(FakeDaemon()) as (app, pilot):
        app.theme = "mine"
        file.write_text(good.replace('"pagechat-dark"', '"mine"').replace("#10141a", "#102030"))
        await wait_until(pilot, lambda: app.theme == "mine" and app.current_theme.background == "#102030")
        await wait_until(pilot, lambda: app.screen.styles.background.hex == "#102030")
        file.write_text("broken")
        await wait_until(pilot, lambda: "Theme skipped" in screen_text(app))


async def test_the_totals_are_told_in_sentences(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(keeps=True)) as (app, pilot):
        await say(app, pilot, "q" * 40)
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await wait_until(pilot, lambda: app.view.mirror is not None and app.view.mirror.owned_blocks == 3)
        await pilot.press("f6")
        await wait_until(pilot, lambda: isinstance(app.screen, TotalsScreen))
        await wait_until(pilot, lambda: "The engine is ready." in screen_text(app))
        text = app.screen.query_one(TextArea).text
        assert "The engine is ready." in text
        assert "Of 256 blocks of 16 tokens, 3 have an owner." in text
        assert "Chat A, " + "q" * 40 + ", holds 3 blocks." in text
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.main)
