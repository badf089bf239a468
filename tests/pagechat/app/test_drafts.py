"""What is typed belongs to its chat, and is lost nowhere."""

from __future__ import annotations

from pathlib import Path

from pagechat.store import Draft, Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import answered, command
from tests.pagechat.app.waiting import wait_until


async def test_each_chat_has_its_own_draft_and_they_outlive_the_app(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press(*"first")
        await pilot.press("ctrl+n")
        assert (len(app.tabs.conversations), app.main.composer.text) == (2, "")
        await pilot.press(*"second")
        await pilot.press("alt+1")
        assert app.main.composer.text == "first"
        await pilot.press("alt+2")
        assert app.main.composer.text == "second"
    async with open_app(FakeDaemon()) as (app, pilot):
        assert [chat.draft for chat in app.tabs.conversations] == ["first", "second"]
        assert app.main.composer.text == "second"
        await pilot.press("alt+1")
        assert app.main.composer.text == "first"


async def test_a_draft_is_in_the_history_a_second_after_it_was_typed(open_app: OpenApp, db: Path) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press(*"half a thought")
        chat = app.tabs.active.id
        await wait_until(pilot, lambda: app.keeper.store.draft(chat) == Draft(text="half a thought"), 10)
        app.main.composer.text = ""
        await wait_until(pilot, lambda: Store(db).chats() == [], 10)  # nothing is left of it


async def test_an_edit_gives_the_draft_back_when_it_is_sent_or_left(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "question")
        await pilot.press(*"draft", "alt+up", "up", "e")
        assert app.main.composer.text == "question"
        await pilot.press("s", "escape")
        assert app.main.composer.text == "draft"
        await pilot.press("alt+up", "up", "e", "s", "enter")
        await wait_until(pilot, lambda: app.tabs.active.messages[0].content == "questions")
        assert app.main.composer.text == "draft"


async def test_an_edit_outlives_another_tab_and_the_app(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "question")
        await pilot.press(*"draft", "alt+up", "up", "e", "s")
        await pilot.press("ctrl+n", "x", "alt+1")
        assert app.main.composer.text == "questions"
    async with open_app(FakeDaemon()) as (app, pilot):
        chat = app.tabs.active
        assert (app.main.composer.text, chat.draft) == ("questions", "draft")
        assert chat.editing is chat.messages[0]
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.tabs.active.messages[0].content == "questions")
        assert app.main.composer.text == "draft"


async def test_what_is_typed_while_the_app_starts_stays_where_it_was_typed(open_app: OpenApp, db: Path) -> None:
    Store(db).create_chat("essay", "essay")
    Store(db).set_open_tabs(["essay"], "essay")
    async with open_app(FakeDaemon(), ready=False) as (app, pilot):
        app.main.composer.text = "early"
        await wait_until(pilot, lambda: app.view.mirror is not None)
        assert app.tabs.active.draft == app.main.composer.text == "early"


async def test_a_text_typed_behind_enter_is_the_next_text(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        composer = app.main.composer
        composer.text = "one"
        composer.action_submit()  # the screen has not read it yet
        composer.action_submit()
        composer.insert("two")
        await wait_until(pilot, lambda: app.tabs.active.messages and not app.tabs.streaming)
        assert composer.text == "two"
        assert [asked[-1].content for asked in daemon.asked] == ["one"]


async def test_a_new_chat_with_words_and_a_fork_overwrite_no_draft(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press(*"mine")
        await app.main.action_command("chat.new", "given")
        assert [chat.draft for chat in app.tabs.conversations] == ["mine", "given"]
        await command(app, pilot, "/copy")
        assert app.tabs.conversations[0].draft == "mine"
