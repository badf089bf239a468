"""Every screen at every size, as text, and every style of the main screen in every theme: the files in `looks/`.

After a wanted change: `LOOKS=write pytest tests/pagechat/app/test_looks.py`, then look at `git diff`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.style import Style
from textual.color import Color
from textual.command import CommandPalette
from textual.pilot import Pilot

from pagechat.app.app import PagechatApp
from pagechat.app.replay import ReplayApp
from pagechat.app.screens.facts import FactsScreen
from pagechat.app.screens.help import HelpScreen
from pagechat.app.screens.history import HistoryScreen
from pagechat.app.screens.settings import SettingsScreen
from pagechat.app.screens.totals import TotalsScreen
from pagechat.themes import contrast, load_themes
from tests.pagechat.app.test_pictures import (  # noqa: F401 - fixtures
    app,
    begin_tour,
    prepare,
    replaying,
    settle,
    steady,
    stop_replay,
    touring,
)
from tests.pagechat.app.waiting import screen_text, wait_until

FOLDER = Path(__file__).parent / "looks"
SIZES = [(200, 50), (120, 40), (80, 24), (40, 12)]
LEGIBLE = 3.0
"""WCAG 2.1, 1.4.11, for what is no running text; that has 4.5 in tests/pagechat/test_themes.py. The single letter of an
owner has its name beside it."""
DIALOGS_UP_TO = 80
"""Cells. In a larger terminal a dialog is the same, with more of the chat around it."""
WRITING = os.environ.get("LOOKS") == "write"


def check(name: str, shown: str) -> None:
    """What is shown is what the file says."""
    file = FOLDER / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in shown.splitlines()).rstrip() + "\n"
    if WRITING:
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} looks otherwise now"


SCREENS: dict[str, tuple[list[str], Callable[[PagechatApp], bool]]] = {
    "chat": ([], lambda one: one.focused is one.main.composer),
    "memory": (["f3", "s"], lambda one: one.focused is one.main.block_map),
    "help": (["escape", "f1"], lambda one: isinstance(one.screen, HelpScreen)),
    "settings": (["escape", "f4"], lambda one: isinstance(one.screen, SettingsScreen)),
    "totals": (["escape", "f6"], lambda one: isinstance(one.screen, TotalsScreen)),
    "chats": (["escape", "ctrl+o"], lambda one: isinstance(one.screen, HistoryScreen)),
    "facts": (["escape", "alt+up", "i"], lambda one: isinstance(one.screen, FactsScreen)),
    "palette": (["escape", "ctrl+p"], lambda one: isinstance(one.screen, CommandPalette)),
}
"""The keys that lead to each, from the one before, and how to know it."""


async def test_every_screen_at_every_size(app: PagechatApp) -> None:  # noqa: F811
    async with app.run_test(size=SIZES[0], notifications=True) as pilot:
        await prepare(pilot)
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            shown = []
            dialogs = width <= DIALOGS_UP_TO
            for name, (keys, there) in list(SCREENS.items())[: None if dialogs else 2]:
                await pilot.press(*keys)
                await wait_until(pilot, lambda there=there: there(app))  # type: ignore[misc]
                await still(app, pilot)
                shown.append(f"== {name} ==\n{screen_text(app)}")
            check(f"{width}x{height}", "\n".join(shown))
            await pilot.press("escape", "escape")
        await app.leave()


async def test_the_tour_at_every_size(touring: PagechatApp) -> None:  # noqa: F811
    shown = []
    async with touring.run_test(size=SIZES[0]) as pilot:
        await begin_tour(pilot)
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await still(touring, pilot)
            shown.append(f"== {width}x{height} ==\n{screen_text(touring)}")
        await touring.leave()
    check("tour", "\n".join(shown))


async def test_the_replay_at_every_size(replaying: ReplayApp) -> None:  # noqa: F811
    shown = []
    async with replaying.run_test(size=SIZES[0]) as pilot:
        await stop_replay(pilot)
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.5)  # it draws ten times a second, standing still too
            shown.append(f"== {width}x{height} ==\n{screen_text(replaying)}")
    check("replay", "\n".join(shown))


async def test_every_theme(app: PagechatApp) -> None:  # noqa: F811
    looks = []
    async with app.run_test(size=(110, 32), notifications=True) as pilot:
        await prepare(pilot)
        await pilot.press("f3", "s")
        for theme in load_themes(Path("/none"))[0]:
            app.theme = theme.name
            await still(app, pilot)
            samples: dict[str, str] = {}
            for strip in app.screen._compositor.render_strips():
                for text, style, _ in strip:
                    if style is None or style.color is None or style.bgcolor is None or not text.strip():
                        continue
                    samples.setdefault(look(style), text)
                    if not theme.ansi and sum(letter.isalnum() for letter in text) > 1:
                        fore, back = Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor)
                        assert contrast(fore, back) >= LEGIBLE, (theme.name, text)
            looks += [f"{theme.name}: {style}: {text.strip()[:24]}" for style, text in sorted(samples.items())]
        await app.leave()
    check("themes", "\n".join(looks))


def look(style: Style) -> str:
    marks = [name for name in ("bold", "italic", "underline", "reverse", "strike") if getattr(style, name)]
    assert style.color is not None
    assert style.bgcolor is not None
    return " ".join([f"{style.color.name} on {style.bgcolor.name}", *marks])


async def still(app: PagechatApp, pilot: Pilot[None]) -> None:  # noqa: F811
    """Nothing blinks, and what was asked for has come."""
    for entry in app.screen.query("Input, TextArea"):
        entry.cursor_blink = False  # type: ignore[attr-defined]
    await settle(pilot)
    before = ""
    while before != (before := screen_text(app)):
        await pilot.pause(0.05)
