"""Settings of chats under the user's own names: saved, listed, taken, deleted."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pagechat.app.chat_settings import PRESETS, ChatSettings
from pagechat.app.presets import PresetError, Presets
from pagechat.app.screens.presets import PresetsScreen
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import command
from tests.pagechat.app.waiting import screen_text, wait_until

POET = ChatSettings(system="Answer in verse.\nAlways.", temperature=1.1)


async def test_a_preset_is_saved_listed_taken_and_deleted(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        app.tabs.active.configure(POET)
        await pilot.press("f9")
        await wait_until(pilot, lambda: isinstance(app.screen, PresetsScreen))
        await pilot.press("s")
        await pilot.press(*"my poet", "enter")
        await wait_until(pilot, lambda: "Saved as my poet" in screen_text(app))
    async with open_app(FakeDaemon()) as (app, pilot):
        assert app.tabs.active.settings == ChatSettings()
        await pilot.press("f9")
        await wait_until(pilot, lambda: isinstance(app.screen, PresetsScreen))
        line = next(line for line in screen_text(app).splitlines() if "my poet" in line)
        assert "temperature 1.1 · “Answer in verse. Always.”" in line
        await pilot.press("end", "enter")
        await wait_until(pilot, lambda: app.screen is app.main)
        assert app.tabs.active.settings == POET
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: app.tabs.active.settings == ChatSettings())
        await command(app, pilot, "/preset my poet")
        assert app.tabs.active.settings == POET
        await pilot.press("f9")
        await wait_until(pilot, lambda: isinstance(app.screen, PresetsScreen))
        await pilot.press("d")  # the one this chat wears is the one under the cursor
        await wait_until(pilot, lambda: "my poet" not in Presets().all())
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: Presets().own() == {"my poet": POET})
        await command(app, pilot, "/preset nobody")
        await wait_until(pilot, lambda: "there is no preset nobody" in screen_text(app))
        await command(app, pilot, "/preset delete precise")
        await wait_until(pilot, lambda: "pagechat brings it" in screen_text(app))


def test_the_file_is_private_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "config" / "presets.json"
    presets = Presets(file)
    assert presets.save("  a \t name ", POET) == "a name"
    presets.save("b", ChatSettings(seed=7))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["presets.json"]
    assert Presets(file).all() == {**PRESETS, "a name": POET, "b": ChatSettings(seed=7)}


def test_a_broken_file_is_told_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "presets.json"
    file.write_text("{")
    with pytest.raises(PresetError, match=r"presets\.json is no list of presets"):
        Presets(file).save("a", POET)
    assert file.read_text() == "{"


def test_values_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "presets.json"
    file.write_text('{"a": {"temperature": 99, "seed": 1, "later": true}}')
    assert Presets(file).own() == {"a": ChatSettings(seed=1)}


@pytest.mark.parametrize("name", ["", " \n", "x" * 41, "precise"])
def test_names_that_cannot_be_taken(name: str, tmp_path: Path) -> None:
    with pytest.raises(PresetError):
        Presets(tmp_path / "presets.json").save(name, POET)
