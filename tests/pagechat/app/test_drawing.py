"""A fault in drawing ends nothing: what a model wrote is then shown as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.content import Content
from textual.geometry import Region

from pagechat.app.drawing import problems
from pagechat.app.widgets import memory_pane, messages
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.messages import Prose
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import drawn, rendered, say, screen_text, wait_until


@pytest.fixture(autouse=True)
def _no_problems_before() -> Iterator[None]:
    problems.clear()
    yield
    problems.clear()


def restored(db: Path, *answers: str) -> None:
    """A chat with these answers is open at the next start."""
    store = Store(db)
    chat = store.create_chat("odd")
    for answer in answers:
        store.add_message(chat.id, "user", "say it")
        store.add_message(chat.id, "assistant", answer)
    store.set_open_tabs([chat.id], chat.id)
    store.close()


ODD = ["-\n\nHello", "1.\n\nText", "-\n\nHello [a]\n\n[a]: http://x.example\n", "x \ud800 y \x1b[2J \x00 \U000e0041"]


async def test_an_odd_answer_streams_and_stands(open_app: OpenApp) -> None:
    daemon = FakeDaemon(script=lambda _: list("Steps:\n\n1.\n\nHello\n\n-\n\nthere [a]\n\n[a]: http://x.example\n"))
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "How?")
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app) and "there a" in rendered(app))
        assert "1.\n\nHello" in rendered(app).replace("1. \n", "1.\n")
        assert not problems


async def test_odd_answers_are_there_at_the_next_start(open_app: OpenApp, db: Path) -> None:
    restored(db, *(answer.encode("utf-8", "replace").decode() for answer in ODD))
    async with open_app(FakeDaemon()) as (app, pilot):
        await wait_until(pilot, lambda: "Hello" in rendered(app))
        assert not problems


async def test_an_answer_that_cannot_be_drawn_is_shown_as_it_was_written(
    open_app: OpenApp, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise IndexError("a fault in our own code")

    monkeypatch.setattr(messages, "draw", broken)
    monkeypatch.setattr(messages, "finished_blocks", broken)
    restored(db, "**one**\n\n- two")
    daemon = FakeDaemon(script=lambda _: ["- **th", "ree**"])
    async with open_app(daemon) as (app, pilot):
        await wait_until(pilot, lambda: "**one**\n\n- two" in rendered(app))
        await say(app, pilot, "More")
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        await wait_until(pilot, lambda: "- **three**" in rendered(app))
        assert problems


async def test_widgets_and_panels_that_cannot_be_drawn_leave_the_rest(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> Content:
        raise ValueError("a fault in our own code")

    async with open_app(FakeDaemon(script=lambda _: ["A list:\n\n- one"])) as (app, pilot):
        monkeypatch.setattr(BlockMap, "render_line", broken)
        monkeypatch.setattr(Prose, "render_line", broken)
        monkeypatch.setitem(memory_pane.PANELS, "history", broken)
        app.main.memory_pane.show_panel("history")
        await say(app, pilot, "Hello")
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        await wait_until(pilot, lambda: "cannot be drawn" in screen_text(app))
        assert "Hello" in screen_text(app)
        assert app.main.block_map.render_lines(Region(0, 0, 10, 2))[0].cell_length == 10
        assert problems
