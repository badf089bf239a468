"""Chats without a screen: what the model is given, what is kept, and what is saved when."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from pagechat import store as store_module
from pagechat.app.chat_settings import ChatSettings
from pagechat.app.conversation import Conversation, title_of
from pagechat.app.keeper import Keeper
from pagechat.app.message import Message, facts_line
from pagechat.store import Store
from tests.pagechat.app.fake import FakeDaemon


async def nothing() -> None:
    pass


async def finished(conversation: Conversation) -> Message:
    assert conversation.task is not None
    await conversation.task
    return conversation.messages[-1]


async def test_an_answer_streams_into_the_chat() -> None:
    conversation = Conversation()
    conversation.ask("hi", await FakeDaemon(script=lambda _: ["hel", "lo"]).connect(), nothing)
    assert conversation.state == "thinking"
    answer = await finished(conversation)
    assert (answer.content, answer.status, conversation.title) == ("hello", "complete", "hi")
    assert answer.facts["completion_tokens"] == 2


async def test_a_chat_keeps_its_blocks_for_the_next_turn() -> None:
    daemon, conversation = FakeDaemon(), Conversation()
    conversation.ask("hi", await daemon.connect(), nothing)
    await finished(conversation)
    assert daemon.kept == [conversation.id]


async def test_the_question_is_saved_before_the_answer_is_asked_for(tmp_path: Path) -> None:
    daemon = FakeDaemon()
    store = Store(tmp_path / "chats.db")
    conversation = Conversation()
    saved_before: list[str] = []

    async def save() -> None:
        assert daemon.asked == []
        await keeper.flush()
        saved_before.extend(m.content for m in store.messages(conversation.id))

    keeper = Keeper(store, lambda _: None)
    keeper.watch(conversation)
    conversation.ask("hi", await daemon.connect(), save)
    await finished(conversation)
    assert saved_before == ["hi", ""]


async def test_stop_keeps_the_text_so_far() -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["one ", "two ", "three"])
    conversation, client = Conversation(), await daemon.connect()
    conversation.ask("count", client, nothing)
    daemon.go(2)
    while conversation.messages[-1].content != "one two ":
        await asyncio.sleep(0)
    await conversation.stop(client)
    answer = conversation.messages[-1]
    assert (answer.content, answer.status, conversation.streaming) == ("one two ", "stopped", False)
    assert daemon.core.snapshot(1).sequences == []


async def test_stop_ends_even_when_the_daemon_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagechat.app.conversation.STOP_TIMEOUT_S", 0.05)
    daemon = FakeDaemon(step_s=0)
    conversation, client = Conversation(), await daemon.connect()
    monkeypatch.setattr(daemon, "abort", lambda request_id: None)
    conversation.ask("hi", client, nothing)
    await asyncio.sleep(0)
    await conversation.stop(client)
    assert conversation.messages[-1].status == "stopped"


async def test_a_dead_daemon_ends_the_answer_with_the_reason_and_its_text() -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["one ", "two"])
    conversation = Conversation()
    conversation.ask("count", await daemon.connect(), nothing)
    daemon.go(1)
    while not conversation.messages[-1].content:
        await asyncio.sleep(0)
    daemon.die("the daemon has gone")
    answer = await finished(conversation)
    assert (answer.content, answer.status, answer.facts["error"]) == ("one ", "error", "the daemon has gone")


async def test_a_refused_request_says_why() -> None:
    conversation = Conversation()
    conversation.ask("x" * 5000, await FakeDaemon().connect(), nothing)
    answer = await finished(conversation)
    assert answer.status == "error"
    assert "5000 tokens" in answer.facts["error"]


def test_the_context_alternates_whatever_happened() -> None:
    chat = Conversation(
        messages=[
            Message("user", "one"),
            Message("assistant", "", "error"),
            Message("user", "two"),
            Message("assistant", "half", "stopped"),
            Message("user", "three"),
        ]
    )
    assert [(m.role, m.content) for m in chat.context()] == [
        ("user", "one\n\ntwo"),
        ("assistant", "half"),
        ("user", "three"),
    ]


async def test_the_model_is_given_raw_text_and_the_screen_safe_text() -> None:
    daemon = FakeDaemon(script=lambda _: ["\x1b[2J"])
    chat, client = Conversation(), await daemon.connect()
    chat.ask("a\x1b", client, nothing)
    answer = await finished(chat)
    assert (answer.content, answer.shown) == ("\x1b[2J", "␛[2J")
    chat.ask("b", client, nothing)
    await finished(chat)
    assert [m.content for m in daemon.asked[1]] == ["a\x1b", "\x1b[2J", "b"]


def test_titles_are_one_short_safe_line() -> None:
    assert title_of("  explain\n\tpaging \x1b[1m ") == "explain paging ␛[1m"
    assert len(title_of("word " * 50)) == 40


def test_the_facts_line_has_counts_and_timings() -> None:
    answer = Message("assistant", "x", "complete", {
        "completion_tokens": 128, "ttft_s": 0.21, "total_s": 5.64, "prompt_tokens": 412, "cached_tokens": 384,
    })  # fmt: skip
    # 127 tokens after the first in 5.43 s
    assert facts_line(answer) == "128 tokens · 23.4 tok/s · first after 0.21 s · prompt 412 (cached 384)"
    assert facts_line(Message("assistant", "", "stopped")) == "stopped"


def test_the_facts_line_says_why_the_cache_missed_and_is_safe() -> None:
    answer = Message("assistant", "x", "complete", {"prompt_tokens": 9, "cache_miss": 'differs at "\x9b" now'})
    assert facts_line(answer) == 'prompt 9 · differs at "‹9b›" now'


async def test_saving_goes_on_after_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.05)
    store, told = Store(tmp_path / "chats.db"), []
    keeper, chat = Keeper(store, told.append), Conversation(title="t", messages=[Message("user", "hi")])
    keeper.watch(chat)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    await keeper.flush()
    await keeper.flush()
    assert len(told) == 1
    assert "locked" in told[0]
    other.execute("ROLLBACK")
    await keeper.flush()
    assert keeper.trouble is None
    assert [m.content for m in store.messages(chat.id)] == ["hi"]


async def test_open_chats_are_saved_again_when_the_file_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store, told = Store(path), []
    keeper, chat = Keeper(store, told.append), Conversation(title="t", messages=[Message("user", "one")])
    keeper.watch(chat)
    await keeper.flush()
    for file in tmp_path.iterdir():
        file.unlink()
    chat.messages.append(Message("user", "two"))
    await keeper.flush()
    await keeper.flush()
    assert "deleted" in told[0]
    assert [m.content for m in Store(path).messages(chat.id)] == ["one", "two"]


async def test_a_chat_closed_while_saving_fails_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.05)
    store = Store(tmp_path / "chats.db")
    keeper, chat = Keeper(store, lambda _: None), Conversation(title="t", messages=[Message("user", "hi")])
    keeper.watch(chat)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    keeper.unwatch(chat)
    await keeper.flush()
    assert chat.id in keeper._watched
    other.execute("ROLLBACK")
    await keeper.flush()
    assert chat.id not in keeper._watched
    assert [m.content for m in store.messages(chat.id)] == ["hi"]


async def test_a_save_that_failed_half_way_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "chats.db")
    keeper = Keeper(store, lambda _: None)
    chat = Conversation(title="t", messages=[Message("user", "one"), Message("user", "two")])
    keeper.watch(chat)
    add, calls = store.add_message, []

    def failing(*arguments: str) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            raise store_module.StoreError("disk full")
        return add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "add_message", failing)
    await keeper.flush()
    await keeper.flush()
    assert [m.content for m in store.messages(chat.id)] == ["one", "two"]


async def test_a_chat_that_was_taken_back_and_is_there_again_is_saved_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    keeper = Keeper(store, lambda _: None)
    chat = Conversation(title="t", queue=["one"], settings=ChatSettings(temperature=0.5), priority=-1)
    keeper.watch(chat)
    await keeper.flush()
    assert len(store.chats()) == 1
    chat.queue.clear()  # all there was of it
    await keeper.flush()
    assert store.chats() == []
    chat.messages.append(Message("user", "two"))
    await keeper.flush()
    assert [(saved.settings, saved.priority) for saved in store.chats()] == [({"temperature": 0.5}, -1)]
