"""Typing, sending, several chats at once, stopping: what a person does with the app."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from textual import events

from pagechat.app.screens.dialogs import AskLine, Confirm
from pagechat.app.screens.history import HistoryScreen
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.messages import SHOWN_CHARACTERS, Answer, Prose
from pagechat.app.widgets.transcript import WINDOW, Transcript
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import drawn, rendered, say, screen_text, wait_until

ATTACKS = [
    "vector<int> and Promise<void>",
    "[/INST] [/] [bold",
    "[@click=app.quit]boo[/]",
    "so <think>secret</think>",
    "```python\nopen = 'fence'",
    "[type=frozen_instance, input_value={}, input_type=dict]",
    "# [/dim]\n\n# [/dim]",
    "1. [x](javascript:alert(1)) <b>bold</b>",
]


async def test_typing_and_enter_send_and_the_answer_appears(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press(*"hello")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "echo hello" in screen_text(app))
        await wait_until(pilot, lambda: "prompt 5" in screen_text(app))
        assert "A hello" in screen_text(app)


async def test_ctrl_j_makes_a_new_line_and_does_not_send(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    async with open_app(daemon) as (_app, pilot):
        await pilot.press("a", "ctrl+j", "b", "enter")
        await wait_until(pilot, lambda: daemon.asked)
        assert daemon.asked[0][0].content == "a\nb"


async def test_blank_input_is_not_sent(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    async with open_app(daemon) as (_app, pilot):
        await pilot.press("space", "enter", "enter")
        assert daemon.asked == []


async def test_two_chats_stream_at_once_and_switching_loses_nothing(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda prompt: [f"{prompt}{n} " for n in range(40)])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "x")
        await pilot.press("ctrl+n")
        await say(app, pilot, "y")
        one, two = app.tabs.conversations
        daemon.go(20)
        await wait_until(pilot, lambda: "y10" in two.messages[-1].content and "x10" in one.messages[-1].content)
        assert (one.state, two.state) == ("streaming", "streaming")
        await wait_until(pilot, lambda: screen_text(app).splitlines()[0].count("●") == 2)
        await pilot.press("alt+1")
        assert app.tabs.active is one
        daemon.go(40)
        await wait_until(pilot, lambda: not app.tabs.streaming)
        for chat, letter in ((one, "x"), (two, "y")):
            assert chat.messages[-1].content == "".join(f"{letter}{n} " for n in range(40))
        await wait_until(pilot, lambda: two.state == "unread" and "◆" in screen_text(app))
        await wait_until(pilot, lambda: "x39" in rendered(app))
        await pilot.press("ctrl+pagedown")
        await wait_until(pilot, lambda: "y39" in rendered(app))
        assert two.state == "idle"


async def test_a_hidden_chat_costs_no_widgets_while_it_streams(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda prompt: ["paragraph\n\n"] * 30)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "x")
        hidden = app.main._transcripts[app.tabs.active.id]
        await pilot.press("ctrl+n")
        before = len(list(hidden.walk_children()))
        daemon.go(31)
        await wait_until(pilot, lambda: not app.tabs.conversations[0].streaming)
        assert len(list(hidden.walk_children())) == before


async def test_escape_stops_the_answer_and_keeps_its_text(open_app: OpenApp, db: Path) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: [f"w{n} " for n in range(100)])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        daemon.go(5)
        await wait_until(pilot, lambda: "w4" in rendered(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.tabs.active.state == "idle")
        await wait_until(pilot, lambda: "stopped" in screen_text(app))
        chat = app.tabs.active.id
        assert app.view.mirror is not None
        await wait_until(pilot, lambda: not app.view.mirror.tables)
    answer = Store(db).messages(chat)[1]
    assert (answer.content, answer.status) == ("w0 w1 w2 w3 w4 ", "stopped")


async def test_text_is_only_ever_text(open_app: OpenApp) -> None:
    daemon = FakeDaemon(script=list)
    async with open_app(daemon) as (app, pilot):
        for text in ATTACKS:
            await pilot.press("ctrl+n")
            await say(app, pilot, text)
            chat = app.tabs.active
            await wait_until(pilot, lambda chat=chat: not chat.streaming and drawn(app))
            shown = rendered(app)
            assert shown.count(text) >= 1  # the question, as it was typed
            words = ("vector<int>", "[/INST]", "[/dim]", "so <think>secret</think>", "<b>bold</b>", "fence", "boo[/]")
            for word in words:
                assert (word in text) == (word in shown.replace(text, "", 1)), f"{word} of {text}"
        assert app.is_running


async def test_terminal_escapes_never_reach_the_terminal(open_app: OpenApp) -> None:
    evil = "\x1b]52;c;aGk=\x07 \x1b[2J \x9b31m \u202egnp.exe"
    daemon = FakeDaemon(script=lambda _: list(evil))
    async with open_app(daemon) as (app, pilot):
        app.main.query_one(Composer).text = "x"
        app.tabs.active.rename(f"title {evil}")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.tabs.active.messages and not app.tabs.streaming)
        await wait_until(pilot, lambda: "gnp.exe" in rendered(app) and "␛[2J" in screen_text(app))
        cells = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
        assert not set(cells) & {chr(c) for c in [*range(32), *range(0x7F, 0xA0), 0x202E]}


async def test_a_link_is_opened_only_after_asking(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    daemon = FakeDaemon(script=lambda _: ["[here](https://example.org/x) and [bad](file:///etc/passwd)"])
    async with open_app(daemon) as (app, pilot):
        monkeypatch.setattr(app, "open_url", lambda url, **_: opened.append(url))
        await say(app, pilot, "link?")
        await wait_until(pilot, lambda: not app.tabs.streaming and list(app.main.query(Prose)))
        await pilot.pause(0.15)
        paragraph = app.main.query_one(Prose)
        await pilot.click(paragraph, offset=(4, 0))
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        assert opened == []
        await pilot.press("y")
        await wait_until(pilot, lambda: opened == ["https://example.org/x"])
        await pilot.click(paragraph, offset=(13, 0))
        await pilot.pause()
        assert not isinstance(app.screen, Confirm)


async def test_a_megabyte_pasted_is_text_and_not_sent(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    text = ("a line of text that was pasted\r\n" * 33_000)[: 1024 * 1024]
    async with open_app(daemon) as (app, pilot):
        composer = app.main.query_one(Composer)
        started = time.process_time()
        composer.post_message(events.Paste(text))
        await wait_until(pilot, lambda: composer.text)
        assert time.process_time() - started < 3  # CPU time: 0.5 s on a Zen 3
        assert daemon.asked == []
        assert composer.text == text.replace("\r\n", "\n").replace("\r", "\n")
        started = time.process_time()
        await pilot.press("x", "y")
        assert time.process_time() - started < 1
        # when it is sent, the transcript shows its beginning, and the reason why it was refused
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.tabs.active.state == "error", 20)
        await wait_until(pilot, lambda: "sent in full" in rendered(app))
        await wait_until(pilot, lambda: "tokens" in rendered(app))
        assert len(rendered(app)) < 3 * SHOWN_CHARACTERS


async def test_long_answers_are_cut_into_blocks_and_end_complete(open_app: OpenApp) -> None:
    answer = "intro\n\n" + "\n".join(f"- item {n}" for n in range(30)) + "\n\n```py\nx = 1\n```\n\nend"
    daemon = FakeDaemon(script=lambda _: [answer[i : i + 3] for i in range(0, len(answer), 3)], step_s=0.002)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "list")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await wait_until(pilot, lambda: drawn(app))
        view = app.main.query_one(Answer)
        assert "".join(view._pieces) == answer
        assert len(view._widgets) == 1
        assert all(f"item {n}" in rendered(app) for n in range(30))


async def test_the_view_follows_the_end_only_while_the_person_is_there(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["paragraph\n\n"] * 100)
    async with open_app(daemon, size=(80, 24)) as (app, pilot):
        await say(app, pilot, "go")
        transcript = app.main.query_one(Transcript)
        daemon.go(30)
        await wait_until(pilot, lambda: transcript.max_scroll_y > 30 and transcript.is_vertical_scroll_end)
        await pilot.press("pageup")
        await pilot.pause()
        at = transcript.scroll_y
        assert at < transcript.max_scroll_y
        end = transcript.max_scroll_y
        daemon.go(10)
        await wait_until(pilot, lambda: transcript.max_scroll_y > end)
        assert transcript.scroll_y == at
        await pilot.press("ctrl+end")
        await wait_until(pilot, lambda: transcript.is_vertical_scroll_end)


async def test_a_long_chat_mounts_only_its_end_until_one_scrolls_up(open_app: OpenApp, db: Path) -> None:
    store = Store(db)
    store.create_chat("long", "long")
    for number in range(100):
        store.add_message("long", "user" if number % 2 == 0 else "assistant", f"message {number}")
    store.set_open_tabs(["long"], "long")
    async with open_app(FakeDaemon()) as (app, pilot):
        await wait_until(pilot, lambda: "message 99" in screen_text(app))
        transcript = app.main.query_one(Transcript)
        assert len(transcript.query("Question, Answer")) == WINDOW
        assert "76 earlier messages" in rendered(app)
        transcript.scroll_home(animate=False)
        await wait_until(pilot, lambda: len(transcript.query("Question, Answer")) == 2 * WINDOW)
        assert "message 52" in rendered(app)
        assert "message 51" not in rendered(app)
        transcript.scroll_home(animate=False)
        await wait_until(pilot, lambda: transcript.scroll_y == 0)
        await pilot.press("pageup")
        await wait_until(pilot, lambda: "message 28" in rendered(app))


async def test_what_was_sent_comes_back_with_up(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        for text in ("first", "second"):
            await say(app, pilot, text)
            await wait_until(pilot, lambda: not app.tabs.streaming)
        composer = app.main.query_one(Composer)
        await pilot.press("up")
        assert composer.text == "second"
        await pilot.press("up")
        assert composer.text == "first"
        await pilot.press("down", "down")
        assert composer.text == ""


async def test_rename_and_close_and_open_again(open_app: OpenApp, db: Path) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("f2")
        await wait_until(pilot, lambda: isinstance(app.screen, AskLine))
        await pilot.press("home", *"[/b] ", "enter")
        await wait_until(pilot, lambda: "[/b] hello" in screen_text(app).splitlines()[0])
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: not app.tabs.active.messages)
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await wait_until(pilot, lambda: "[/b] hello" in screen_text(app))
        await pilot.press("enter")
        await wait_until(pilot, lambda: "echo hello" in rendered(app))
        assert len(app.tabs.conversations) == 1


async def test_a_deleted_chat_can_come_back_until_the_app_is_left(open_app: OpenApp, db: Path) -> None:
    Store(db).create_chat("doomed", "doomed")
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("ctrl+d")
        await wait_until(pilot, lambda: app.screen is app.main and Store(db).chats() == [])
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: [chat.title for chat in Store(db).chats()] == ["doomed"])
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, HistoryScreen))
        await pilot.press("ctrl+d")
        await wait_until(pilot, lambda: app.screen is app.main and Store(db).chats() == [])
    # what was deleted long ago is gone for good after the next start
    with sqlite3.connect(db) as old:
        old.execute("UPDATE chats SET deleted = deleted - 31 * 86400")
    async with open_app(FakeDaemon()) as (_, pilot):
        await wait_until(pilot, lambda: not Store(db).hide_chat("doomed", hidden=False))


async def test_closing_a_streaming_chat_asks_first(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "hello")
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.main)
        assert app.tabs.active.streaming
        await pilot.press("alt+w")
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await wait_until(pilot, lambda: not app.tabs.active.messages)
        assert daemon.runs == {}
