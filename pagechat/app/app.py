"""The Textual application: themes, commands, the connection's life, and leaving without a loss."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme

from engine.protocol import Snapshot
from pagechat.app import clipboard, keymap
from pagechat.app.boundary import Boundary, Unending
from pagechat.app.client_api import Client
from pagechat.app.commands.all import BY_ID, COMMANDS
from pagechat.app.commands.chats import learn_pins
from pagechat.app.commands.servers import remember as remember_model
from pagechat.app.fitted import FittedApp
from pagechat.app.keeper import Keeper
from pagechat.app.keys import read_alt_keys
from pagechat.app.letters import Letters
from pagechat.app.link import Link, LinkState
from pagechat.app.pool_view import PoolView
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.screens.help import HelpScreen
from pagechat.app.screens.main import MainScreen
from pagechat.app.servers import Servers
from pagechat.app.tabs import Tabs
from pagechat.app.terminal import FEW_COLORS_THEME
from pagechat.app.tour import Tour
from pagechat.app.widgets.tour_card import TourCard
from pagechat.store import Store, StoreError
from pagechat.text_safety import sanitize
from pagechat.themes import DEFAULT_THEME, ThemeProblem, load_themes, user_theme_stamp

PROBLEM_S = 20.0
"""What a person has to do something about stays so long: it may come while they wait for the engine."""
GC_THRESHOLDS = (20_000, 20, 50)
"""Python's own (700, 10, 10) look for garbage many times a second while answers are drawn: frames make many objects,
and few cycles."""
THEMES_S = 2.0
"""How often the user's theme files are looked at."""
RESTART_S = 1.0
"""Before what ended by an error goes on."""
END_S = 1.0
"""How long leaving waits for the end of the connection."""
CTRL_C_S = 3.0
"""Two ctrl+c within this time quit."""


class PagechatApp(FittedApp, Unending):
    """The app over any `Client`; `open_client` finds or starts a daemon and connects."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", show=False, priority=True)]

    def __init__(
        self,
        open_client: Callable[[], Awaitable[Client]],
        store: Store,
        *,
        theme: str | None = None,
        themes: tuple[list[Theme], list[ThemeProblem]] | None = None,
        tour: bool = False,
        servers: Servers | None = None,
    ) -> None:
        """`servers`: where what `open_client` opens can be changed; None: it cannot. `tour`: the guided tour runs as
        soon as the engine is ready."""
        loaded, self._theme_problems = themes or load_themes()
        super().__init__(loaded)
        read_alt_keys()
        self._open_client = open_client
        self.servers = servers
        self._wanted_theme = theme
        self._letters = Letters()
        self.view = PoolView(self._letters)
        self.keeper = Keeper(store, self._trouble)
        self.tabs = Tabs(self.keeper, self._letters)
        card = TourCard() if tour else None
        self.main = MainScreen(self.tabs, self.view, self.keeper, card)
        self.tour = Tour(self.main, card) if card is not None else None
        self.link: Link | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ctrl_c_at = -CTRL_C_S
        self._leaving = False
        self._theme_files = user_theme_stamp()

    def get_default_screen(self) -> Screen[None]:
        """The main one from the start: an empty one below it would be laid out and drawn first."""
        return self.main

    async def on_mount(self) -> None:
        await self._choose_theme()
        keys, wrong_keys = keymap.load(keymap.path(), BY_ID)
        self.set_keymap(keys)
        self.theme_changed_signal.subscribe(self, self._theme_changed)
        self._start(self.keeper.run, lasting=True)
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._end_by, self.leave)
            loop.add_signal_handler(signal.SIGHUP, self._end_by, self._leave_no_terminal)
        self.set_interval(THEMES_S, self._reload_themes)
        # The first screen comes before anything it can do without; and what is told before it is there, nobody sees.
        self.main.call_after_refresh(self._go_on_whatever_happens)
        self.main.call_after_refresh(self._connect)
        self.main.call_after_refresh(self._tell_key_problems, wrong_keys)
        self.main.call_after_refresh(self._tell_theme_problems)

    def _go_on_whatever_happens(self) -> None:
        """The first screen stands: from now on errors are told on it."""
        self.boundary = Boundary(self._tell_error)

    def _tell_error(self, text: str, title: str) -> None:
        if not self._leaving:
            self.notify(text, title=title, severity="error", timeout=PROBLEM_S if title else 10, markup=False)

    # -- themes --------------------------------------------------------------------------------

    async def _choose_theme(self) -> None:
        try:
            remembered = await self.keeper.call(self.keeper.store.recall, "theme")
        except StoreError:
            remembered = None
        self.choose_theme(self._wanted_theme, remembered)

    def _tell_key_problems(self, problems: Sequence[str]) -> None:
        for problem in problems:
            self.notify(problem, title="Keys skipped", severity="warning", timeout=PROBLEM_S, markup=False)

    def _tell_theme_problems(self) -> None:
        for problem in self._theme_problems:
            text = f"{problem.file}: {problem.reason}"
            self.notify(text, title="Theme skipped", severity="warning", timeout=PROBLEM_S, markup=False)

    def _reload_themes(self) -> None:
        """When a file of the user's themes has changed: all of them again, the worn one at once."""
        stamp = user_theme_stamp()
        if stamp == self._theme_files:
            return
        self._theme_files = stamp
        loaded, self._theme_problems = load_themes()
        self.take_themes(loaded)
        worn = self.theme
        self.theme = DEFAULT_THEME if worn != DEFAULT_THEME else "textual-dark"
        self.theme = worn
        self._tell_theme_problems()

    def _theme_changed(self, theme: Theme) -> None:
        self.view.redraw_all()
        if theme.name != FEW_COLORS_THEME:  # that may be this terminal's, and not the person's choice
            self.run_worker(self._remember_theme(theme.name), group="theme")

    async def _remember_theme(self, name: str) -> None:
        try:
            await self.keeper.call(self.keeper.store.remember, "theme", name)
        except StoreError as error:
            self._trouble(f"Not saved: {error}")

    # -- the connection ------------------------------------------------------------------------

    def _connect(self) -> None:
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        self.link = Link(self._open_client, self._reset_pool, self.view.apply, self._link_changed)
        self.main.attach(self.link)
        self._start(self.link.run, lasting=True)

    def _reset_pool(self, snapshot: Snapshot | None) -> None:
        self.view.reset(snapshot)
        # A mirror of a large pool is some hundred thousand objects without a cycle. Looking through them for garbage
        # again and again would stop the app for a fifth of a second each time.
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _link_changed(self, state: LinkState) -> None:
        self.main.show_link(state)
        self._follow_engine(state)
        if self.servers is not None and self.servers.changing:
            self._follow_change(self.servers, state)
        if state.phase == "ready" and self.tour is not None and not self._was_ready:
            self._start(self.tour.run)
        if state.phase == "ready" and self._interrupted:
            self.notify("The engine is ready again.", markup=False)
        self._interrupted = state.phase != "ready" and (self._interrupted or self._was_ready)
        self._was_ready = state.phase == "ready"

    def _follow_engine(self, state: LinkState) -> None:
        """Another engine, or the first one: what is pinned in it is its to say."""
        engine = state.status.engine_pid if state.phase == "ready" and state.status is not None else None
        client = self.link.client if self.link is not None else None
        if engine is None or engine == self._engine or client is None:
            return
        self._engine = engine
        for chat in self.tabs.conversations:
            if chat.pinned:
                chat.pinned = False
                chat.changed()
        self.run_worker(learn_pins(client, self.tabs.conversations), group="pins")

    _engine: int | None = None

    def _follow_change(self, servers: Servers, state: LinkState) -> None:
        """To another server: it answers, or it does not and the one before comes back."""
        if state.phase == "ready":
            servers.settle()
            self._was_ready = self._interrupted = False  # what is told here says it all
            model = state.status.model if state.status else None
            if model is not None:
                self.notify(f"Now {model.name} answers.", markup=False)
                self.run_worker(self._remember_model(model.name), group="models")
        elif state.phase in ("failed", "lost"):
            failed, now = servers.back()
            reason = state.reason.removeprefix("ModelError: ")
            text = f"{failed.label} cannot be used: {reason}\nBack to {now.label}. F10 chooses again."
            self.notify(sanitize(text), title="Not changed", severity="error", timeout=PROBLEM_S, markup=False)
            self.main.move_link()

    async def _remember_model(self, name: str) -> None:
        try:
            await remember_model(self.keeper, name)
        except StoreError as error:
            self._trouble(f"Not saved: {error}")

    _was_ready = _interrupted = False

    def _trouble(self, text: str) -> None:
        if not self._leaving:
            self.notify(text, severity="error", timeout=10, markup=False)

    def _start(self, work: Callable[[], Coroutine[None, None, None]], lasting: bool = False) -> None:
        """Something beside the screen. `lasting`: it goes on as long as the app, even after an error of its own."""

        async def run() -> None:
            while True:
                try:
                    await work()
                except Exception as error:
                    if self.boundary is None:
                        raise
                    self.boundary.meet(error)
                if not lasting:
                    return
                await asyncio.sleep(RESTART_S)

        task = asyncio.create_task(run())
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    def copy_to_clipboard(self, text: str) -> None:
        """By the program that this machine has for it, else through the terminal (OSC 52)."""
        tool = clipboard.find()
        if tool is None:
            super().copy_to_clipboard(text)
        else:
            self._clipboard = text
            self.run_worker(self._copy_by(tool, text), group="clipboard")

    async def _copy_by(self, tool: clipboard.Tool, text: str) -> None:
        if not await clipboard.put(tool, text):
            super().copy_to_clipboard(text)

    def on_tour_card_next(self) -> None:
        if self.tour is not None:
            self.tour.next()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        # Before there is a screen to tell it on: a bug must show itself, not leave a screen that silently stands still.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.call_later(self._crash, error)

    def _crash(self, error: BaseException) -> None:
        raise error

    # -- commands ------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every command of ours; those of the main screen only there."""
        if screen is self.main:
            for command in COMMANDS:
                keys = f" ({command.shown_keys})" if command.keys else f" (/{command.slash})" if command.slash else ""
                run = partial(self.main.action_command, command.id)
                what = {"undo": self.main.undo.next, "redo": self.main.undo.next_again}.get(command.id)
                does = f"Now: {what}" if what else command.help
                yield SystemCommand(command.title, f"{does}{keys}", run)
        else:
            yield SystemCommand("Theme", "Choose the colours", self.action_change_theme)
            yield SystemCommand("Quit", "Leave pagechat (ctrl+q)", self.action_quit)

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_scroll_chat(self, pages: int) -> None:
        self.main.scroll_chat(pages)

    # -- leaving -------------------------------------------------------------------------------

    def action_help_quit(self) -> None:
        """ctrl+c with nothing to copy: twice quits."""
        now = time.monotonic()
        if now - self._ctrl_c_at < CTRL_C_S:
            self.call_later(self.action_quit)
        else:
            self._ctrl_c_at = now
            self.notify("ctrl+c once more quits.", timeout=CTRL_C_S, markup=False)

    async def action_quit(self) -> None:
        """Quit, whatever dialog is open; asks once while answers are being written."""
        streaming = len(self.tabs.streaming)
        if self._leaving or self.screen is self._quit_question:
            return
        if not streaming:
            await self.leave()
            return
        what = "One answer is" if streaming == 1 else f"{streaming} answers are"
        question = Confirm(f"{what} still being written. Quit?", "What is written so far is kept.", "Quit", "Stay")
        self._quit_question = question
        self.push_screen(question, self._quit_answered)

    _quit_question: Confirm | None = None

    async def _quit_answered(self, yes: bool | None) -> None:
        if yes:
            await self.leave()

    def _end_by(self, leave: Callable[[], Coroutine[None, None, None]]) -> None:
        self._tasks.append(asyncio.create_task(leave()))

    async def _leave_no_terminal(self) -> None:
        """The terminal has gone (SIGHUP). Textual would wait for ever to write to it: save, and end without it.

        A daemon that this app started ends when it sees our end of its pipe close.
        """
        if self._driver is not None:
            self._driver.write = lambda data: None  # type: ignore[method-assign]
        if await self._save_all():
            os._exit(128 + signal.SIGHUP)

    async def leave(self) -> None:
        """Stop what streams, save everything, close the connection, end."""
        if await self._save_all():
            trouble = self.keeper.trouble
            message = f"pagechat: the last words could not be saved. {trouble}" if trouble else None
            self.exit(return_code=1 if message else 0, message=message)

    async def _save_all(self) -> bool:
        """False when that is under way already."""
        if self._leaving:
            return False
        self._leaving = True
        await self.main.leave()
        self.tabs.remember()
        await self.keeper.close()
        lasting = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in lasting:
            task.cancel()
        if lasting:
            await asyncio.wait(lasting, timeout=END_S)
        return True
