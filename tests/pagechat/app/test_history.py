"""Finding what was said, and chats as files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from textual.widgets import Input

from pagechat.app import transfer
from pagechat.app.chat_settings import ChatSettings
from pagechat.app.message import Message
from pagechat.app.screens.history import HistoryScreen
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import screen_text, wait_until

MESSAGES = [
    Message("user", "What <b>is</b> a page?\n\n# really"),
    Message("assistant", "<!-- pagechat:user -->\nI never said that.", "stopped", {"completion_tokens": 3}),
]
SETTINGS = ChatSettings(system="Be brief.", temperature=0.5)


async def test_a_search_finds_the_words_of_a_message_and_opens_the_chat_there(open_app: OpenApp, db: Path) -> None:
    store = Store(db)
    store.create_chat("trees", "trees")
    for number in range(80):
        store.add_message("trees", "user" if number % 2 == 0 else "assistant", f"leaf {number}")
    store.create_chat("pages", "pages")
    store.add_message("pages", "user", "[/x] a walk through page tables")
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press("ctrl+f")
        await wait_until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        # the title of one chat, and words in another
        app.screen.query_one(Input).value = "page"
        await wait_until(pilot, lambda: "[/x] a walk through page tables" in screen_text(app))
        assert "trees" not in screen_text(app)
        # a message far above what is mounted at first
        app.screen.query_one(Input).value = "leaf 3"
        await wait_until(pilot, lambda: "leaf 30" in screen_text(app))
        app.screen.query_one(Input).value = "leaf 31"
        await wait_until(pilot, lambda: "leaf 30" not in screen_text(app) and "leaf 31" in screen_text(app))
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.main and app.tabs.active.id == "trees")
        await wait_until(pilot, lambda: app.main.transcript.selected is app.tabs.active.messages[31])
        await wait_until(pilot, lambda: "leaf 31" in screen_text(app))


async def test_a_chat_goes_to_a_file_and_comes_back_from_it(open_app: OpenApp, db: Path, tmp_path: Path) -> None:
    Store(db).create_chat("essay", "essay")
    Store(db).add_message("essay", "user", "hello")
    Store(db).set_open_tabs(["essay"], "essay")
    file = tmp_path / "out" / "essay.json"
    async with open_app(FakeDaemon()) as (app, pilot):
        for command in (f"/export {file}", f"/import {file}"):
            app.main.composer.text = command
            await pilot.press("enter")
            await wait_until(pilot, file.exists)
        await wait_until(pilot, lambda: len(app.tabs.conversations) == 2)
        assert [m.content for m in app.tabs.active.messages] == ["hello"]
        app.main.composer.text = f"/export {file}"
        await pilot.press("enter")
        await wait_until(pilot, lambda: "Not exported" in screen_text(app))  # it is there already
        app.main.composer.text = f"/import {tmp_path / 'nothing'}"
        await pilot.press("enter")
        await wait_until(pilot, lambda: "Not imported" in screen_text(app))


@pytest.mark.parametrize("name", ["x.json", "x.openai.json", "x.md"])
def test_what_was_said_comes_back_from_every_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    transfer.write_new(path, transfer.exported(path, "a title", SETTINGS, MESSAGES))
    imported = transfer.read(path).conversation()
    assert [(m.role, m.content) for m in imported.messages] == [(m.role, m.content) for m in MESSAGES]
    assert imported.settings.system == "Be brief."
    if name == "x.json":
        assert imported.title == "a title"
        assert imported.settings == SETTINGS
        assert [(m.status, m.facts) for m in imported.messages] == [("complete", {}), ("stopped", MESSAGES[1].facts)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# a readme", "no chat that pagechat exported"),
        ("[{}]", "role"),
        ('{"messages": 1}', "array"),
        ("{", "JSON|trunc"),
    ],
)
def test_a_file_that_is_no_chat_says_why(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError, match=reason):
        transfer.read(tmp_path / "x")


def test_an_exported_chat_is_private(tmp_path: Path) -> None:
    transfer.write_new(tmp_path / "x.md", "text")
    assert stat.S_IMODE((tmp_path / "x.md").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        transfer.write_new(tmp_path / "x.md", "other")
