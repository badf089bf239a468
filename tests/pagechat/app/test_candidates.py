"""Several answers to one question: side by side, one is picked, the others are kept with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from pagechat.app.choosing import picked, reopened
from pagechat.app.message import Message
from pagechat.app.widgets.candidates import Candidates, columns_for
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import command, told
from tests.pagechat.app.waiting import rendered, say, screen_text, wait_until


def numbered() -> Callable[[str], Sequence[str]]:
    """Another answer each time: `answer 0`, `answer 1`, ..."""
    numbers = count()
    return lambda _: [f"answer {next(numbers)} ", "and ", "so ", "on"]


async def test_answers_stream_side_by_side_and_the_picked_one_stays(open_app: OpenApp, db: Path) -> None:
    daemon = FakeDaemon(step_s=0, keeps=True, script=numbered())
    async with open_app(daemon, size=(160, 45)) as (app, pilot):
        question = "Tell me a story about a page table, please."
        await command(app, pilot, f"/several 3 {question}")
        daemon.go(2)
        await wait_until(pilot, lambda: "answer 2 and" in rendered(app))
        # they stand beside each other, and the blocks of the question are held once for all three
        rows = [row for row in screen_text(app).splitlines() if "answer 0 and" in row]
        assert "answer 1 and" in rows[0]
        assert "answer 2 and" in rows[0]
        mirror = app.view.mirror
        assert mirror is not None
        await wait_until(pilot, lambda: mirror.status().shared == len(question) // 16)
        daemon.go(100)
        await wait_until(pilot, lambda: not app.tabs.streaming)
        # what is written meanwhile waits for the choice
        assert app.focused is app.main.query_one(Candidates)
        await pilot.press(*"dnext", "home", "delete", "enter")  # no key of a message, such as d: it is written
        await wait_until(pilot, lambda: "Pick an answer, and it is sent" in screen_text(app))
        app.main.query_one(Candidates).focus()
        await pilot.press("right", "enter")
        daemon.go(100)
        await wait_until(pilot, lambda: len(told(app)) == 4 and not app.tabs.streaming)
        assert told(app)[1] == ("assistant", "answer 1 and so on")
        assert [message.content for message in daemon.asked[-1]][1] == "answer 1 and so on"
        assert not app.main.query(Candidates)
        chat = app.tabs.active.id
    kept = Store(db).messages(chat)
    assert [message.content for message in kept][1] == "answer 1 and so on"
    assert [one["content"] for one in kept[1].facts["alternatives"]] == ["answer 0 and so on", "answer 2 and so on"]


async def test_a_choice_is_made_again_and_taken_back(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(script=numbered()), size=(80, 24)) as (app, pilot):
        await say(app, pilot, "question")
        await wait_until(pilot, lambda: not app.tabs.streaming and len(told(app)) == 2)
        await pilot.press("alt+up", "s")
        await wait_until(pilot, lambda: app.tabs.active.choosing and not app.tabs.streaming)
        await wait_until(pilot, lambda: "answer 3" in rendered(app))
        await pilot.press("2")
        await wait_until(pilot, lambda: told(app)[1] == ("assistant", "answer 2 and so on"))
        await wait_until(pilot, lambda: "2 others kept" in rendered(app))
        await command(app, pilot, "/others")
        await wait_until(pilot, lambda: app.main.query(Candidates))
        await command(app, pilot, "/pick 3")
        await wait_until(pilot, lambda: told(app)[1] == ("assistant", "answer 3 and so on"))
        await command(app, pilot, "/undo")
        await wait_until(pilot, lambda: app.tabs.active.choosing)
        await command(app, pilot, "/undo")  # /others
        await wait_until(pilot, lambda: told(app)[1] == ("assistant", "answer 2 and so on"))
        await command(app, pilot, "/undo")
        await wait_until(pilot, lambda: app.tabs.active.choosing)
        await command(app, pilot, "/undo")
        await wait_until(pilot, lambda: told(app) == [("user", "question"), ("assistant", "answer 0 and so on")])


async def test_stopped_answers_keep_their_text_and_survive_leaving(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=numbered())
    async with open_app(daemon) as (app, pilot):
        await command(app, pilot, "/several 2 Go")
        daemon.go(2)
        await wait_until(pilot, lambda: "answer 1 and" in rendered(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        assert [one.status for one in app.tabs.active.messages[-1].candidates] == ["stopped", "stopped"]
    async with open_app(FakeDaemon()) as (app, pilot):
        assert told(app)[1] == ("assistant", "answer 0 and ")
        await command(app, pilot, "/others")
        await wait_until(pilot, lambda: app.tabs.active.choosing)
        assert [one.content for one in app.tabs.active.messages[-1].candidates] == ["answer 0 and ", "answer 1 and "]


async def test_what_cannot_be_is_told(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        for text in ("/several 1", "/several 5", "/several", "/pick 1", "/others"):
            app.clear_notifications()
            await command(app, pilot, text)
            await wait_until(pilot, lambda: app._notifications)
        assert not app.tabs.active.messages


@pytest.mark.parametrize(
    ("count", "width", "columns"), [(2, 80, 2), (3, 78, 3), (3, 70, 2), (4, 90, 2), (4, 120, 4), (3, 30, 1)]
)
def test_columns_are_as_many_as_can_be_read(count: int, width: int, columns: int) -> None:
    assert columns_for(count, width) == columns


def test_alternatives_that_cannot_be_read_are_none() -> None:
    answer = Message("assistant", "a", choices=[Message("assistant", "b")])
    again = reopened(picked(answer, 1))
    assert again is not None
    assert [one.content for one in again.candidates] == ["b", "a"]
    assert reopened(Message("assistant", "a", facts={"alternatives": "later"})) is None
