"""Starting, losing the daemon, quitting, starting again: nothing said is ever lost."""

from __future__ import annotations

import asyncio
import os
import pty
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pexpect
import pytest
from textual.drivers._writer_thread import WriterThread

from engine.protocol import LoadProgress
from pagechat import store as store_module
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.screens.help import HelpScreen
from pagechat.app.terminal import LastingTerminal
from pagechat.app.widgets.banner import Banner
from pagechat.client import NoDaemon
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import rendered, say, screen_text, wait_until

ROOT = str(Path(__file__).parents[3])
SLOW = {"step_s": 0, "script": lambda _: [f"w{n} " for n in range(100)]}


async def test_a_banner_shows_what_the_engine_does(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    daemon.state, daemon.load = (
        "loading",
        LoadProgress(stage="fetching", detail="smollm2", done=73_000_000, total=146_000_000),
    )
    async with open_app(daemon, ready=False) as (app, pilot):
        await wait_until(pilot, lambda: "Fetching the model" in screen_text(app))
        await wait_until(pilot, lambda: " 50 %" in screen_text(app))
        assert "73 of 146 MB" in screen_text(app)
        daemon.state = "ready"
        await wait_until(pilot, lambda: not app.main.query_one(Banner).display)


async def test_a_failed_start_says_why_and_can_be_tried_again(open_app: OpenApp) -> None:
    daemon, broken = FakeDaemon(), [NoDaemon("the daemon did not start: no space left")]

    async def connect() -> object:
        if broken:
            raise broken.pop()
        return await daemon.connect()

    async with open_app(daemon, ready=False, connect=connect) as (app, pilot):
        await wait_until(pilot, lambda: "no space left" in screen_text(app))
        assert "Try again" in screen_text(app)
        await pilot.press("f5")
        await wait_until(pilot, lambda: not app.main.query_one(Banner).display)


async def test_a_failed_engine_says_why(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    daemon.state, daemon.error = "failed", "no model.safetensors in /nowhere [/x]"
    async with open_app(daemon, ready=False) as (app, pilot):
        await wait_until(pilot, lambda: "no model.safetensors in /nowhere [/x]" in screen_text(app))


async def test_what_is_sent_while_the_engine_loads_is_answered_when_it_is_ready(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    daemon.state = "loading"
    async with open_app(daemon, ready=False) as (app, pilot):
        await wait_until(pilot, lambda: app.screen is app.main)
        await pilot.press(*"quick r", "enter", *"more")
        await wait_until(pilot, lambda: "queued 1  quick r" in screen_text(app))
        assert daemon.asked == []
        daemon.state = "ready"
        await wait_until(pilot, lambda: "echo quick r" in screen_text(app))
        assert app.main.composer.text == "more"


async def test_trying_again_after_a_failed_engine_replaces_its_daemon(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    daemon.state, daemon.error, daemon.respawns = "failed", "out of memory", True
    async with open_app(daemon, ready=False) as (app, pilot):
        await wait_until(pilot, lambda: "out of memory" in screen_text(app))
        await pilot.press("f5")
        await wait_until(pilot, lambda: not app.main.query_one(Banner).display)


async def test_a_daemon_that_dies_leaves_the_text_and_another_one_goes_on(open_app: OpenApp) -> None:
    daemon = FakeDaemon(**SLOW)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        daemon.go(3)
        await wait_until(pilot, lambda: "w2" in rendered(app))
        daemon.die("the daemon has gone")
        await wait_until(pilot, lambda: app.tabs.active.state == "error")
        await wait_until(pilot, lambda: "! the daemon has gone" in rendered(app))
        assert "w0 w1 w2" in rendered(app)
        # a banner says so, and what is sent now waits
        await wait_until(pilot, lambda: "The daemon is gone" in screen_text(app))
        await pilot.press(*"again", "enter")
        assert len(app.tabs.active.messages) == 2
        # when it is back, so is the app
        daemon.dead = None
        daemon.new_engine()
        await wait_until(pilot, lambda: app.link.state.phase == "ready" and app.view.mirror is not None)  # type: ignore[union-attr]
        daemon.go(200)
        await wait_until(pilot, lambda: "w99" in app.tabs.active.messages[-1].content)


async def test_a_restarted_engine_gets_a_new_map(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "hello there, this takes blocks")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await wait_until(pilot, lambda: app.view.mirror.cached)  # type: ignore[union-attr]
        daemon.num_blocks = 128
        daemon.new_engine()
        await wait_until(pilot, lambda: app.view.num_blocks == 128)
        assert not app.view.mirror.cached  # type: ignore[union-attr]


async def test_quitting_while_answers_stream_asks_once_and_loses_nothing(open_app: OpenApp, db: Path) -> None:
    daemon = FakeDaemon(**SLOW)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        chat = app.tabs.active.id
        daemon.go(3)
        await wait_until(pilot, lambda: "w2" in app.tabs.active.messages[-1].content)
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("n")
        await wait_until(pilot, lambda: app.screen is app.main)
        assert app.tabs.active.streaming
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await wait_until(pilot, lambda: not app.is_running)
    answer = Store(db).messages(chat)[1]
    assert (answer.content, answer.status) == ("w0 w1 w2 ", "stopped")
    assert daemon.runs == {}


async def test_quitting_when_nothing_streams_does_not_ask(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: not app.is_running)


async def test_ctrl_c_twice_quits_and_once_does_not(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: not app.is_running)


async def test_open_chats_come_back_at_the_next_start(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        for text in ("first", "second"):
            await pilot.press("ctrl+n")
            await say(app, pilot, text)
            await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("alt+1")
        assert app.tabs.active.title == "first"
    async with open_app(FakeDaemon()) as (app, pilot):
        assert [c.title for c in app.tabs.conversations] == ["first", "second"]
        assert app.tabs.active.title == "first"
        await wait_until(pilot, lambda: "echo first" in screen_text(app))
        assert [app.tabs.letter(c) for c in app.tabs.conversations] == ["A", "B"]


async def test_the_answer_is_saved_while_it_streams(open_app: OpenApp, db: Path) -> None:
    daemon = FakeDaemon(**SLOW)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        chat = app.tabs.active.id
        daemon.go(3)
        reader = Store(db)
        await wait_until(pilot, lambda: reader.messages(chat)[1].content == "w0 w1 w2 ", 2)
        assert reader.messages(chat)[1].status == "streaming"


async def test_a_locked_history_is_told_and_the_chat_goes_on(
    open_app: OpenApp, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.05)
    async with open_app(FakeDaemon()) as (app, pilot):
        other = sqlite3.connect(db, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: "echo hello" in rendered(app))
        await wait_until(pilot, lambda: "Not saved" in screen_text(app))
        other.execute("ROLLBACK")
        await wait_until(pilot, lambda: app.keeper.trouble is None)
        assert [m.content for m in Store(db).messages(app.tabs.active.id)] == ["hello", "echo hello"]


async def test_help_lists_keys_and_legend(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(), size=(120, 114)) as (app, pilot):
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert all(word in screen_text(app) for word in ("ctrl+n", "cached: no owner", "ctrl+q"))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.main)


async def test_every_action_is_in_the_palette(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, _):
        titles = {command.title for command in app.get_system_commands(app.main)}
        assert {
            "New chat",
            "Chats",
            "Rename chat",
            "Close chat",
            "Fork",
            "Stop answer",
            "Memory",
            "Theme",
            "Help",
            "Quit",
        } <= titles


async def test_the_chosen_theme_is_remembered(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        assert app.theme == "pagechat-dark"
        app.theme = "pagechat-light"
        await pilot.pause(0.1)
    async with open_app(FakeDaemon()) as (app, _):
        assert app.theme == "pagechat-light"


async def test_themes_without_our_colours_can_be_worn_too(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        for name in ("pagechat-light", "nord", "terminal", "ansi-light", "pagechat-dark"):
            app.theme = name
            await pilot.pause()
        await wait_until(pilot, lambda: "pool" in screen_text(app))


HUNG_UP = """
import sys
from pathlib import Path
from pagechat.app.app import PagechatApp
from pagechat.store import Store
from tests.pagechat.app.fake import FakeDaemon
daemon = FakeDaemon(step_s=0.02, script=lambda _: [f"w{n} " for n in range(10_000)])
PagechatApp(daemon.connect, Store(Path(sys.argv[1]))).run()
"""


@pytest.mark.parametrize("leader", ["the app", "a shell that waits for it"])
def test_a_terminal_that_goes_away_ends_the_app_with_everything_saved(db: Path, leader: str) -> None:
    """The kernel tells the session's leader only, and the others when that one ends. `make chat` waits as well."""
    command = [sys.executable, "-c", HUNG_UP, str(db)]
    if leader != "the app":
        command = ["/bin/sh", "-c", 'trap : HUP; "$@"; true', "sh", *command]
    app = pexpect.spawn(command[0], command[1:], dimensions=(24, 80), timeout=20, cwd=ROOT)
    app.expect("Ask something")
    app.expect("tok/s")
    app.send("\x1b1count\r")  # alt+1 first: a key, and not the text "1"
    app.expect("w5 ")
    app.close(force=False)  # hangs up
    deadline = time.monotonic() + 10
    while app.isalive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not app.isalive()
    (chat,) = Store(db).chats()
    question, answer = Store(db).messages(chat.id)
    assert (question.content, answer.status) == ("count", "stopped")
    assert answer.content.startswith("w0 w1 w2 w3 w4 w5 ")


def test_frames_for_a_terminal_that_has_gone_hold_nobody_up() -> None:
    """Textual's writer takes thirty; one more used to wait for ever, and SIGHUP with it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file:
        writer = WriterThread(LastingTerminal(file))
        writer.start()
        os.close(ours)
        written = threading.Event()

        def draw() -> None:
            for _ in range(200):
                writer.write("frame\n" * 1000)
            writer.stop()
            written.set()

        threading.Thread(target=draw, daemon=True).start()
        assert written.wait(10)


async def test_the_app_draws_on_such_a_terminal(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, _):
        driver = app.get_driver_class()(app)
    assert isinstance(driver._file, LastingTerminal)


async def test_a_signal_saves_and_ends(open_app: OpenApp, db: Path) -> None:
    daemon = FakeDaemon(**SLOW)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        chat = app.tabs.active.id
        daemon.go(2)
        await wait_until(pilot, lambda: "w1" in app.tabs.active.messages[-1].content)
        app._end_by(app.leave)
        await wait_until(pilot, lambda: not app.is_running)
        await asyncio.sleep(0)
    assert [(m.content, m.status) for m in Store(db).messages(chat)][1] == ("w0 w1 ", "stopped")


async def test_a_queue_survives_leaving_and_nothing_of_it_is_sent_unseen(open_app: OpenApp) -> None:
    loading = FakeDaemon()
    loading.state = "loading"
    async with open_app(loading, ready=False) as (app, pilot):
        await wait_until(pilot, lambda: app.screen is app.main)
        await pilot.press(*"one", "enter", *"two", "enter", *"three", "enter")
        await pilot.press("up")  # taken back: it does not wait any more
        assert app.tabs.active.queue == ["one", "two"]
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        await wait_until(pilot, lambda: "Not sent yet when pagechat was left: enter sends" in screen_text(app))
        assert all(line in screen_text(app) for line in ("queued 1  one", "queued 2  two"))
        assert daemon.asked == []
        assert app.main.composer.text == "three"  # taken back, and not sent
        app.main.composer.text = ""
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(app.tabs.active.messages) == 4 and not app.tabs.streaming)
        assert [asked[-1].content for asked in daemon.asked] == ["one", "two"]
    async with open_app(daemon) as (app, pilot):
        assert app.tabs.active.queue == []
        assert len(app.tabs.active.messages) == 4


async def test_a_chat_whose_only_prompt_was_taken_back_leaves_no_trace(open_app: OpenApp, db: Path) -> None:
    loading = FakeDaemon()
    loading.state = "loading"
    async with open_app(loading, ready=False) as (app, pilot):
        await wait_until(pilot, lambda: app.screen is app.main)
        await pilot.press(*"one", "enter")
        await app.keeper.flush()
        assert len(app.keeper.store.chats()) == 1
        await pilot.press("up")
        app.main.composer.text = ""
    assert Store(db).chats() == []
