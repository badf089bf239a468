"""Undo takes back exactly what it says, and redo does it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from pagechat.app.app import PagechatApp
from pagechat.app.message import Message
from pagechat.app.undo import Undo, exchanged
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import answered, command, told
from tests.pagechat.app.waiting import screen_text, wait_until


def replying(*replies: str) -> FakeDaemon:
    rest = iter(replies)
    return FakeDaemon(script=lambda _: [next(rest)])


def said(app: PagechatApp) -> list[str]:
    return [text for _, text in told(app)]


async def press(app: PagechatApp, pilot: Pilot[None], key: str, expected: Callable[[], bool]) -> None:
    await pilot.press(key)
    await wait_until(pilot, expected)


async def test_undo_of_another_answer_leaves_what_was_said_later(open_app: OpenApp, db: Path) -> None:
    async with open_app(replying("alpha", "beta", "later")) as (app, pilot):
        await answered(app, pilot, "question")
        await command(app, pilot, "/retry")
        await wait_until(pilot, lambda: said(app) == ["question", "beta"] and not app.tabs.streaming)
        await answered(app, pilot, "and then?")
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: said(app) == ["question", "alpha", "and then?", "later"])
        await wait_until(pilot, lambda: "Taken back: another answer" in screen_text(app))
        await pilot.press("alt+y")
        await wait_until(pilot, lambda: said(app) == ["question", "beta", "and then?", "later"])
        chat = app.tabs.active.id
    assert [one.content for one in Store(db).messages(chat)] == ["question", "beta", "and then?", "later"]


async def test_undo_undo_redo_redo_and_a_new_action_ends_redo(open_app: OpenApp) -> None:
    async with open_app(replying("alpha", "beta", "gamma")) as (app, pilot):
        await answered(app, pilot, "question")
        await command(app, pilot, "/retry")
        await wait_until(pilot, lambda: said(app) == ["question", "beta"] and not app.tabs.streaming)
        await command(app, pilot, "/continue")
        await wait_until(pilot, lambda: said(app) == ["question", "betagamma"] and not app.tabs.streaming)
        assert app.main.undo.next == "going on with an answer in question"
        await press(app, pilot, "alt+z", lambda: said(app) == ["question", "beta"])
        await press(app, pilot, "alt+z", lambda: said(app) == ["question", "alpha"])
        await press(app, pilot, "alt+y", lambda: said(app) == ["question", "beta"])
        await press(app, pilot, "alt+y", lambda: said(app) == ["question", "betagamma"])
        await press(app, pilot, "alt+z", lambda: said(app) == ["question", "beta"])
        await command(app, pilot, "/rename other")
        await pilot.press("alt+y")
        await wait_until(pilot, lambda: "There is nothing to do again" in screen_text(app))
        assert said(app) == ["question", "beta"]


async def test_undo_does_not_touch_what_another_window_has_changed_since(open_app: OpenApp, db: Path) -> None:
    async with open_app(replying("alpha", "beta")) as (app, pilot):
        await answered(app, pilot, "question")
        await command(app, pilot, "/retry")
        await wait_until(pilot, lambda: said(app) == ["question", "beta"] and not app.tabs.streaming)
        await app.keeper.flush()
        other = Store(db)
        chat = app.tabs.active.id
        (beta,) = [one for one in other.messages(chat) if one.content == "beta"]
        other.hide_message(beta.id)
        other.add_message(chat, "assistant", "theirs")
        await wait_until(pilot, lambda: said(app) == ["question", "theirs"])
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: "Not taken back" in screen_text(app))
        assert said(app) == ["question", "theirs"]
    assert [one.content for one in Store(db).messages(chat)] == ["question", "theirs"]


async def test_a_deleted_chat_comes_back_and_goes_again(open_app: OpenApp, db: Path) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "hello")
        chat = app.tabs.active.id
        await command(app, pilot, "/delete")
        await wait_until(pilot, lambda: Store(db).chats() == [] and app.tabs.find(chat) is None)
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: app.tabs.active.id == chat and said(app) == ["hello", "echo hello"])
        assert [one.id for one in Store(db).chats()] == [chat]
        await pilot.press("alt+y")
        await wait_until(pilot, lambda: Store(db).chats() == [] and app.tabs.find(chat) is None)
        # when it has been purged meanwhile, undo says so
        Store(db).purge()
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: "gone for good" in screen_text(app))


async def test_what_was_undone_in_a_closed_chat_is_seen_and_saved(open_app: OpenApp, db: Path) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "hello")
        chat = app.tabs.active.id
        await pilot.press("alt+up", "d")
        await wait_until(pilot, lambda: said(app) == ["hello"])
        await pilot.press("escape", "alt+w")
        await wait_until(pilot, lambda: app.tabs.find(chat) is None)
        await app.keeper.flush()
        await app.tabs.open(chat)
        await app.main.switched()
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: said(app) == ["hello", "echo hello"])
    assert [one.content for one in Store(db).messages(chat)] == ["hello", "echo hello"]


async def test_a_delete_that_cannot_be_stored_changes_nothing(open_app: OpenApp, db: Path) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "hello")
        await app.keeper.flush()
        assert app.keeper.store._db is not None
        app.keeper.store._db.execute("PRAGMA query_only = ON")  # as a full disk would
        await command(app, pilot, "/delete")
        await wait_until(pilot, lambda: "Not deleted" in screen_text(app))
        assert said(app) == ["hello", "echo hello"]
        app.keeper.store._db.execute("PRAGMA query_only = OFF")
    assert len(Store(db).chats()) == 1


def test_exchanged_messages_stand_where_they_stood() -> None:
    one, two, three, four, new = (Message("user", text) for text in ("1", "2", "3", "4", "n"))
    before = [one, two, three]
    assert exchanged([one, new, four], [new], [two, three], before) == [one, two, three, four]
    assert exchanged([one, two, three, four], [two, three], [new], [one, new]) == [one, new, four]
    assert exchanged([four], [], [one], before) == [one, four]
    assert exchanged([one, two], [], [two], before) == [one, two]


async def test_a_step_that_was_taken_back_otherwise_is_passed_over() -> None:
    undo, calls, moot = Undo(), [], [False]

    async def back() -> None:
        calls.append("back")

    undo.add("first", back, back)
    undo.add("second", back, back, lambda: moot[0])
    assert undo.next == "second"
    moot[0] = True
    assert await undo.undo() == "first"
    assert await undo.undo() is None
    assert calls == ["back"]
