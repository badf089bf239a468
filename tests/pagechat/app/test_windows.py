"""Several windows on one history: none destroys, hides or overwrites what another one has."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pagechat import store as store_module
from pagechat.app import following
from pagechat.app.conversation import ChatBusy, Conversation
from pagechat.app.keeper import Keeper
from pagechat.app.message import Message
from pagechat.app.screens.history import HistoryScreen
from pagechat.store import Draft, Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import rendered, say, screen_text, wait_until


def texts(store: Store, chat_id: str) -> list[str]:
    return [message.content for message in store.messages(chat_id)]


async def loaded(keeper: Keeper, chat_id: str) -> Conversation:
    """The chat as a window has it that opens it now."""
    chat = keeper.store.find_chat(chat_id)
    assert chat is not None
    conversation = Conversation.restored(chat, keeper.store.messages(chat_id), *keeper.store.take(chat_id))
    keeper.watch(conversation)
    return conversation


def windows(path: Path) -> tuple[Keeper, Keeper]:
    first, second = Store(path), Store(path)
    first.enter()
    second.enter()
    return Keeper(first, lambda _: None), Keeper(second, lambda _: None)


async def test_writing_in_a_chat_that_another_window_deleted_brings_all_of_it_back(open_app: OpenApp, db: Path) -> None:
    other = Store(db)
    chat = other.create_chat("essay")
    for text in ("one", "two"):
        other.add_message(chat.id, "user", text)
    other.set_open_tabs([chat.id], chat.id)
    async with open_app(FakeDaemon()) as (app, pilot):
        other.hide_chat(chat.id)
        await wait_until(pilot, lambda: "was deleted in another window" in screen_text(app))
        await say(app, pilot, "three")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await app.keeper.flush()
    assert [one.id for one in Store(db).chats()] == [chat.id]
    assert texts(Store(db), chat.id) == ["one", "two", "three", "echo one\n\ntwo\n\nthree"]


async def test_what_one_window_deleted_another_one_does_not_purge_by_leaving(open_app: OpenApp, db: Path) -> None:
    other = Store(db)
    chat = other.create_chat("essay")
    message = other.add_message(chat.id, "user", "one")
    other.hide_message(message)
    async with open_app(FakeDaemon()) as (_, pilot):
        await pilot.pause(1)
    assert other.hide_message(message, hidden=False)
    assert texts(other, chat.id) == ["one"]


async def test_a_chat_closed_and_reopened_stays_one_and_everything_is_saved(open_app: OpenApp, db: Path) -> None:
    Store(db).create_chat("essay", "essay")
    Store(db).add_message("essay", "user", "zero")
    async with open_app(FakeDaemon()) as (app, pilot):
        await app.tabs.open("essay")
        await app.main.switched()
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: app.tabs.find("essay") is None)
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.tabs.find("essay") is not None and app.screen is app.main)
        await say(app, pilot, "one")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("alt+z")  # the close has been taken back already
        await wait_until(pilot, lambda: "There is nothing to take back" in screen_text(app))
        assert [chat.id for chat in app.tabs.conversations].count("essay") == 1
        await say(app, pilot, "not lost")
        await wait_until(pilot, lambda: not app.tabs.streaming)
    assert "not lost" in texts(Store(db), "essay")


async def test_two_windows_keep_both_their_tabs(open_app: OpenApp, db: Path) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await say(app, pilot, "first")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        first = app.tabs.active.id
        await app.keeper.flush()
        async with open_app(FakeDaemon()) as (second, beside):
            assert [chat.blank for chat in second.tabs.conversations] == [True]  # the others are open already
            await say(second, beside, "second")
            await wait_until(beside, lambda: not second.tabs.streaming)
            chat = second.tabs.active.id
    assert set(Store(db).open_tabs()[0]) == {first, chat}
    async with open_app(FakeDaemon()) as (app, _):
        assert {chat.id for chat in app.tabs.conversations} == {first, chat}


async def test_a_chat_open_in_two_windows_says_so_and_shows_what_the_other_one_does(
    open_app: OpenApp, db: Path
) -> None:
    slow = FakeDaemon(step_s=0, script=lambda _: ["alpha ", "beta ", "gamma"])
    async with open_app(slow) as (app, pilot):
        await say(app, pilot, "hello")
        slow.go(1)
        chat = app.tabs.active
        await wait_until(pilot, lambda: "alpha" in chat.messages[-1].content)
        await app.keeper.flush()
        async with open_app(FakeDaemon()) as (second, beside):
            there = await second.tabs.open(chat.id)
            await second.main.switched()
            await wait_until(beside, lambda: "alpha" in rendered(second))
            assert there.elsewhere
            assert "=" in screen_text(second).splitlines()[0]
            # what is sent there waits for the end of the answer here
            await say(second, beside, "and now?")
            assert there.queue == ["and now?"]
            with pytest.raises(ChatBusy, match="Another window"):
                there.regenerate(1, None, second.keeper.flush)
            slow.go(50)
            await wait_until(beside, lambda: not there.queue and not there.streaming and len(there.messages) == 4)
            await wait_until(beside, lambda: "gamma" in rendered(second))
            # and comes here
            await wait_until(pilot, lambda: [one.content for one in chat.messages] == texts(Store(db), chat.id))
            assert [one.content for one in chat.messages][:3] == ["hello", "alpha beta gamma", "and now?"]
            # a deletion there is one here
            there.set_messages(there.messages[:2])
            await wait_until(pilot, lambda: len(chat.messages) == 2)
            there.rename("another name")
            await wait_until(pilot, lambda: chat.title == "another name")


async def test_two_windows_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    one, two = windows(tmp_path / "chats.db")
    one.store.create_chat("t", "t")
    here, there = await loaded(one, "t"), await loaded(two, "t")
    for number in range(20):
        here.messages.append(Message("user", f"here {number}"))
        there.messages.append(Message("user", f"there {number}"))
        await one.flush()
        await two.flush()
        if number % 3 == 0:
            await two.follow()
    for keeper in (one, two):
        await keeper.flush()
        await keeper.follow()
    expected = {f"{where} {number}" for where in ("here", "there") for number in range(20)}
    assert [m.content for m in here.messages] == [m.content for m in there.messages] == texts(one.store, "t")
    assert set(texts(one.store, "t")) == expected
    assert len(here.messages) == 40


async def test_a_deletion_does_not_write_an_old_text_over_a_new_one(tmp_path: Path) -> None:
    one, two = windows(tmp_path / "chats.db")
    here = Conversation(id="t", title="t", messages=[Message("assistant", "half", "streaming")])
    one.watch(here)
    await one.flush()
    there = await loaded(two, "t")
    here.messages[0].end("complete", "whole")
    await one.flush()
    there.set_messages([])  # it has not seen the end yet
    await two.flush()
    there.set_messages([*there.dropped])
    await two.flush()
    assert texts(one.store, "t") == ["whole"]


async def test_an_answer_whose_window_was_killed_does_not_stay_unfinished_elsewhere(tmp_path: Path) -> None:
    one, two = windows(tmp_path / "chats.db")
    one.store.create_chat("t", "t")
    one.store.add_message("t", "assistant", "half", "streaming")
    there = await loaded(two, "t")
    assert there.followed is not None
    with sqlite3.connect(tmp_path / "chats.db") as db:
        db.execute("UPDATE messages SET writer = '1:1:another-boot'")
    for _ in range(4):
        await two.follow()
    assert there.followed is None
    assert (there.messages[0].content, there.messages[0].status) == ("half", "stopped")


async def test_prompts_that_wait_in_one_window_are_not_sent_by_another(tmp_path: Path) -> None:
    one, two = windows(tmp_path / "chats.db")
    here = Conversation(id="t", title="t", queue=["mine"], draft="half a")
    one.watch(here)
    await one.flush()
    there = await loaded(two, "t")
    assert (there.queue, there.draft) == ([], "")
    there.queue.append("theirs")
    there.draft = "another"
    await two.flush()
    assert (one.store.queue("t"), one.store.draft("t")) == (["mine"], Draft(text="half a"))
    # those of windows that have ended go to who opens the chat next, and to nobody else
    for keeper in (one, two):
        keeper.store.leave()
    third, fourth = windows(tmp_path / "chats.db")
    last = await loaded(third, "t")
    assert sorted(last.queue) == ["mine", "theirs"]
    assert last.held
    assert sorted(last.draft.split("\n\n")) == ["another", "half a"]
    after = await loaded(fourth, "t")
    assert (after.queue, after.draft) == ([], "")


async def test_a_chat_that_was_purged_while_open_is_saved_whole_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    keeper = Keeper(store, lambda _: None)
    chat = Conversation(id="t", title="t", messages=[Message("user", "one")])
    keeper.watch(chat)
    await keeper.flush()
    Store(tmp_path / "chats.db").delete_chat("t")
    chat.messages.append(Message("user", "two"))
    await keeper.flush()
    assert texts(store, "t") == ["one", "two"]


async def test_what_cannot_be_saved_when_leaving_is_saved_by_the_next_start(
    open_app: OpenApp, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 10.0)
    Store(db)
    other = sqlite3.connect(db, isolation_level=None)
    async with open_app(FakeDaemon()) as (app, pilot):
        other.execute("BEGIN IMMEDIATE")
        app.main.sender.submit(app.tabs.active, "hello")
        await app.main.follow()
        chat = app.tabs.active.id
        await pilot.press(*"half a thought")
        await app.leave()
        assert "the next start of pagechat reads it" in (app.keeper.trouble or "")
    other.execute("ROLLBACK")
    assert Store(db).chats() == []
    async with open_app(FakeDaemon()) as (app, pilot):
        await wait_until(pilot, lambda: "Saved now" in screen_text(app))
        assert texts(Store(db), chat)[:1] == ["hello"]
        opened = await app.tabs.open(chat)
        assert opened.draft == "half a thought"
    assert not list(db.parent.glob("*unsaved*"))


async def test_a_history_that_can_only_be_read_is_told_and_the_message_is_saved_when_it_can(
    open_app: OpenApp, db: Path
) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.pause(0.7)
        assert app.keeper.store._db is not None
        app.keeper.store._db.execute("PRAGMA query_only = ON")
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: "Not saved" in screen_text(app))
        assert "readonly database" in (app.keeper.trouble or "")
        await wait_until(pilot, lambda: "echo hello" in rendered(app))
        app.keeper.store._db.execute("PRAGMA query_only = OFF")
        await wait_until(pilot, lambda: app.keeper.trouble is None)
        assert texts(Store(db), app.tabs.active.id) == ["hello", "echo hello"]


def test_news_of_a_message_known_already_change_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    store.create_chat("t", "t")
    store.add_message("t", "user", "one")
    chat = store.find_chat("t")
    assert chat is not None
    conversation = Conversation.restored(chat, store.messages("t"))
    (news,) = store.news({"t": 0})
    following.take(conversation, news)
    assert [one.content for one in conversation.messages] == ["one"]
    assert store.news({"t": conversation.seen}) == []
