"""Waiting for what a test expects, and looking at the screen."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static

from pagechat.app.app import PagechatApp
from pagechat.app.widgets.composer import Composer


async def wait_until(pilot: Pilot[None], predicate: Callable[[], object], timeout: float = 40.0) -> None:
    """Run the app until the predicate holds."""
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, f"not within {timeout:g} s; the screen:\n{_shown(pilot)}"
        await pilot.pause(0.05)  # looking at the whole screen costs about as much


def _shown(pilot: Pilot[None]) -> str:
    return screen_text(pilot.app) if isinstance(pilot.app, PagechatApp) else ""


async def say(app: PagechatApp, pilot: Pilot[None], text: str) -> None:
    """Type a message and send it."""
    app.main.query_one(Composer).text = text
    app.main.query_one(Composer).focus()
    await pilot.press("enter")
    await wait_until(pilot, lambda: app.tabs.active.messages and app.main.query_one(Composer).text == "")


def screen_text(app: App[None]) -> str:
    """What the terminal shows now, line by line."""
    return "\n".join(
        "".join(segment.text for segment in strip).rstrip() for strip in app.screen._compositor.render_strips()
    )


def drawn(app: PagechatApp) -> bool:
    """The active chat is drawn up to date."""
    transcript = app.main._transcripts[app.tabs.active.id]
    return not transcript.stale and not transcript._drawing.locked()


def rendered(app: PagechatApp) -> str:
    """The text of the active chat as its widgets show it, whether scrolled into view or not."""
    transcript = app.main._transcripts[app.tabs.active.id]
    texts = []
    for widget in transcript.query(Static):
        if widget.display:
            texts.append(str(widget.visual))
    return "\n".join(texts)
