"""Nothing that goes wrong ends the app, and no wait for the engine takes the keys."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from textual.widgets import Button, Input

from pagechat.app import boundary, transfer
from pagechat.app.chat_settings import ChatSettings
from pagechat.app.message import Message
from pagechat.app.presets import Presets
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.screens.history import HistoryScreen
from pagechat.app.widgets.banner import Banner
from pagechat.client import NoDaemon
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeClient, FakeDaemon
from tests.pagechat.app.test_messages import answered, command
from tests.pagechat.app.waiting import say, screen_text, wait_until


async def never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine stands still (kill -STOP): what is asked of it is never answered."""
    for question in ("manage_session", "pieces", "block", "sessions", "snapshot"):
        monkeypatch.setattr(FakeClient, question, never)


async def test_a_tab_is_closed_and_typing_goes_on_in_the_one_that_is_shown(open_app: OpenApp, db: Path) -> None:
    for name in ("left", "right"):
        Store(db).create_chat(name, name)
        Store(db).add_message(name, "user", name)
    Store(db).set_open_tabs(["left", "right"], "right")
    async with open_app(FakeDaemon()) as (app, pilot):  # the left one was never shown
        await pilot.press(*"kept")
        await pilot.press("alt+w", "h", "i", "enter")
        await wait_until(pilot, lambda: len(app.tabs.active.messages) == 3 and not app.tabs.streaming)
        assert app.tabs.active.id == "left"
        assert "left" in screen_text(app)
        await app.tabs.open("right")
        await app.main.switched()
        assert app.main.composer.text == "kept"
        assert len(app.tabs.active.messages) == 1


async def test_an_unexpected_error_is_logged_told_and_the_app_goes_on(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_app(FakeDaemon(), faulty=True) as (app, pilot):

        def broken(*_: object) -> None:
            raise KeyError("a bug [/x] \x1b[2J \ud800")

        async def broken_later() -> None:
            broken()

        with monkeypatch.context() as patched:
            patched.setattr(app.main.sender, "take_back", broken)  # of a key, in the input
            await pilot.press("up")
            await wait_until(pilot, lambda: "A fault in pagechat" in screen_text(app))
        log = boundary.log_path().read_text()
        assert "KeyError" in log
        assert "take_back" in log
        app.main.run_worker(broken_later())
        app.main.set_timer(0.01, broken)
        app.main.call_later(broken)
        app.main.call_after_refresh(broken)
        app.call_later(broken)
        await wait_until(pilot, lambda: app.boundary is not None and len(app.boundary.unexpected) >= 6)
        await answered(app, pilot, "still here")
        assert app.is_running
        assert app.return_code in (None, 0)
    assert boundary.log_path().stat().st_mode & 0o777 == 0o600


async def test_undo_with_a_broken_preset_file_says_so(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await command(app, pilot, "/preset save mine")
        await command(app, pilot, "/preset delete mine")
        await wait_until(pilot, lambda: "Deleted: mine" in screen_text(app))
        Presets()._file.write_text("{broken")
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: "Not taken back" in screen_text(app))
        Presets()._file.write_text("{}")
        await pilot.press("alt+z")  # it can be tried again
        await wait_until(pilot, lambda: "mine" in Presets().own())


@pytest.mark.parametrize("name", ["a.md", "a.json", "a.openai.json"])
def test_odd_text_is_exported(tmp_path: Path, name: str) -> None:
    text = transfer.exported(
        tmp_path / name,
        "t \udc80",
        ChatSettings(system="s \ud800"),
        [Message("user", "x \udc80 y", facts={"e": "\ud800"})],
    )
    transfer.write_new(tmp_path / name, text)
    assert transfer.read(tmp_path / name).messages[-1].content == "x ? y"


@pytest.mark.parametrize(
    "content",
    [b'[{"role": "user", "content": "x \\ud800 y"}]', b'{"messages": ' + b"[" * 100_000, b"\xff\xfe", b"[1]", b""],
)
async def test_any_file_can_be_tried_and_none_ends_the_app(open_app: OpenApp, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.json").write_bytes(content)
    async with open_app(FakeDaemon()) as (app, pilot):
        await command(app, pilot, f"/import {tmp_path / 'in.json'}")
        await wait_until(pilot, lambda: "mported" in screen_text(app))


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "/proc/none/x", "nul\0", "x" * 300])
async def test_any_name_of_a_file_is_told_and_does_not_end_the_app(open_app: OpenApp, name: str) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "hello")
        for verb in ("export", "import"):
            await app.main.action_command(f"chat.{verb}", name)
        await wait_until(pilot, lambda: "Not exported" in screen_text(app) and "Not imported" in screen_text(app))


async def test_the_text_of_a_block_of_a_chat_without_messages(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(keeps=True)) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        await wait_until(pilot, lambda: app.view.mirror is not None and app.view.mirror.tables)
        app.tabs.active.set_messages([])
        await pilot.press("f3", "home")
        app.main.block_map.select(next(iter(app.view.mirror.tables.values())).blocks[0])  # type: ignore[union-attr]
        await pilot.press("enter")
        await wait_until(pilot, lambda: "no messages any more" in screen_text(app))


async def test_no_key_waits_for_an_engine_that_stands_still(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary.answered, "__defaults__", (1.0,))
    async with open_app(FakeDaemon(keeps=True)) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        stopped(monkeypatch)
        began = time.monotonic()
        await pilot.press("alt+up", "f")
        assert len(app.tabs.conversations) == 2
        for command_id in ("chat.pin", "message.blocks", "chat.close", "undo", "redo", "memory.text"):
            await app.main.action_command(command_id)
        assert time.monotonic() - began < 20  # a loaded machine draws slowly; one wait alone would be for ever
        await wait_until(pilot, lambda: "The engine has not answered" in screen_text(app))
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: not app.is_running, 10)


async def test_quitting_does_not_wait_for_a_daemon_that_stands_still(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch, db: Path
) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["one ", "two "])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        daemon.go(1)
        await wait_until(pilot, lambda: app.tabs.active.messages[-1].content == "one ")
        chat = app.tabs.active.id
        stopped(monkeypatch)
        monkeypatch.setattr(daemon, "abort", lambda _: None)
        monkeypatch.setattr(FakeClient, "close", never)
        began = time.monotonic()
        await app.leave()
        assert time.monotonic() - began < 4
    assert [(one.content, one.status) for one in Store(db).messages(chat)][1] == ("one ", "stopped")


async def test_ctrl_q_quits_from_every_dialog(open_app: OpenApp) -> None:
    for dialog in ("chat.history", "chat.rename", "chat.settings", "help", "theme", "memory.totals", "chat.presets"):
        async with open_app(FakeDaemon()) as (app, pilot):
            await app.main.action_command(dialog)
            await wait_until(pilot, lambda app=app: app.screen is not app.main)
            await pilot.press("ctrl+q")
            await wait_until(pilot, lambda app=app: not app.is_running)
    daemon = FakeDaemon(step_s=0)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "hello")
        await pilot.press("alt+w")  # asks whether the answer may be stopped
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: "Quit?" in screen_text(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: not app.is_running)


async def test_the_banners_quit_saves_as_ctrl_q_does(open_app: OpenApp, db: Path) -> None:
    async def connect() -> object:
        raise NoDaemon("no space left")

    async with open_app(FakeDaemon(), ready=False, connect=connect) as (app, pilot):
        await wait_until(pilot, lambda: "no space left" in screen_text(app))
        await pilot.press(*"hello", "enter")
        chat = app.tabs.active.id
        app.main.query_one(Banner).query_one("#quit", Button).press()
        await wait_until(pilot, lambda: not app.is_running)
        assert app._leaving
    assert Store(db).queue(chat) == ["hello"]


async def test_delete_in_the_search_of_the_history_deletes_text(open_app: OpenApp, db: Path) -> None:
    Store(db).create_chat("essay", "essay")
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press(*"es", "home", "delete")
        assert app.screen.query_one(Input).value == "s"
        assert isinstance(app.screen, HistoryScreen)
        assert len(Store(db).chats()) == 1


async def test_pinned_is_what_the_engine_says(open_app: OpenApp) -> None:
    daemon = FakeDaemon(keeps=True)
    async with open_app(daemon) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        await command(app, pilot, "/pin")
        await wait_until(pilot, lambda: app.tabs.active.pinned)
        daemon.new_engine()
        await wait_until(pilot, lambda: not app.tabs.active.pinned)
        await answered(app, pilot, "again")
        await command(app, pilot, "/pin")
        await wait_until(pilot, lambda: app.tabs.active.pinned)
    async with open_app(daemon) as (app, pilot):  # the engine has gone on meanwhile
        await wait_until(pilot, lambda: app.tabs.active.pinned)
