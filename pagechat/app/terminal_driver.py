"""The driver of a terminal: Textual's, and what a person's shell, other programs and other encodings do to it.

- It is stopped and goes on (ctrl+z and `fg`; SIGSTOP and SIGCONT, from whoever): it reads keys in one thread at a time,
  and everything is drawn again, for a shell has written in between.
- It is killed: `terminal_guard` gives the terminal back.
- A byte comes that is no UTF-8: it is a key like any other that means nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from pagechat.app.drawing import failed
from pagechat.app.terminal import lasting, watch_for_hangup
from pagechat.app.terminal_guard import Guard, restore

POLL_S = 0.1
"""Textual's parser tells a lone ESC from the beginning of a key by the time that passes."""
CHUNK = 4096
"""Bytes."""


class TerminalDriver(lasting(LinuxDriver)):  # type: ignore[misc]
    """Textual's driver for Linux and macOS."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._guard: Guard | None = None
        self._on = False
        """The terminal is ours."""

    # -- taking the terminal, and giving it back -------------------------------------------------

    def start_application_mode(self) -> None:
        first = self._guard is None
        if first and os.isatty(self.fileno):
            with contextlib.suppress(OSError):
                self._guard = Guard(self.fileno)
        self._tell(Guard.TAKEN)
        self._on = True
        super().start_application_mode()
        if first:
            watch_for_hangup(self.fileno)
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTSTP, self.stop_process)
            loop.add_signal_handler(signal.SIGCONT, self._go_on)

    def close(self) -> None:
        super().close()
        self._on = False
        self._tell(Guard.FREE)

    def give_back_at_once(self) -> None:
        """Without Textual, whose threads may wait for a terminal that has gone. Nothing is drawn afterwards."""
        if self._on:
            self._on = False
            restore(self.fileno, self.attrs_before)
            self._tell(Guard.FREE)

    def write(self, data: str) -> None:
        if self._on:  # else somebody else draws there
            super().write(data)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Another program has the terminal, while the app goes on unseen."""
        with self.no_automatic_restart():
            self.suspend_application_mode()
            try:
                yield
            finally:
                self._take_again()

    def _tell(self, state: bytes) -> None:
        if self._guard is not None:
            self._guard.tell(state)

    # -- stopping and going on -------------------------------------------------------------------

    def _sigtstp_application(self, *_: object) -> None:
        """Not in a signal handler, which may have interrupted what holds a lock. The loop calls `stop_process`."""

    def _sigcont_application(self, *_: object) -> None:
        """The loop calls `_go_on`."""

    def stop_process(self, group: bool = False) -> None:
        """Give the terminal back and stop, as SIGTSTP does by itself; return when somebody lets the process go on.

        `group`: all of the job, as ctrl+z at a shell does; the shell waits for `make`, and not for what that started.
        A job that no shell waits for is not stopped: nobody could let it go on.
        """
        taken = self._on and self._auto_restart  # an editor may have the terminal
        if taken:
            self.suspend_application_mode()
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGCONT)  # the one that ends the stop is answered here
        loop.remove_signal_handler(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            if group:
                os.killpg(os.getpgrp(), signal.SIGTSTP)
            else:
                os.kill(os.getpid(), signal.SIGTSTP)
            if taken:
                self._take_again()
        finally:
            loop.add_signal_handler(signal.SIGTSTP, self.stop_process)
            loop.add_signal_handler(signal.SIGCONT, self._go_on)

    def _go_on(self) -> None:
        """SIGCONT after a stop that nobody told us of: a shell may have used the terminal meanwhile."""
        if self._on and self._auto_restart:
            self.suspend_application_mode()
            self._take_again()

    def _take_again(self) -> None:
        self._wait_for_foreground()
        self.resume_application_mode()
        for screen in self._app.screen_stack:
            screen.refresh(layout=True)
            screen.refresh()

    def _wait_for_foreground(self) -> None:
        """A job in the background that wants its terminal is stopped again, until `fg`."""
        with contextlib.suppress(OSError):
            while os.tcgetpgrp(self.fileno) != os.getpgrp():
                os.killpg(os.getpgrp(), signal.SIGSTOP)

    # -- reading keys ----------------------------------------------------------------------------

    def run_input_thread(self) -> None:
        """Read, and tell the app of the keys, until `exit_event`."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        parser = XTermParser(self._debug)
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(POLL_S):
                    data = _read(self.fileno)
                    if not data:
                        return  # the terminal has gone, or there never was one
                    parser = self._feed(parser, decode(data))
                self._tell_of(parser.tick)
        with contextlib.suppress(EOFError, ParseError):
            list(parser.feed(""))

    def _feed(self, parser: XTermParser, text: str) -> XTermParser:
        """Read the text; another parser when this one cannot go on."""
        return parser if self._tell_of(lambda: parser.feed(text)) else XTermParser(self._debug)

    def _tell_of(self, read: Callable[[], Iterable[Message]]) -> bool:
        """A key that cannot be read ends no app. False: there was one."""
        try:
            for event in read():
                self.process_message(event)
        except Exception as error:
            failed(error)
            return False
        return True


def _read(fileno: int) -> bytes:
    try:
        return os.read(fileno, CHUNK)
    except OSError:
        return b""


def driver_for(driver: type[Driver]) -> type[Driver]:
    """What to use in place of a driver of Textual's."""
    return TerminalDriver if driver is LinuxDriver else lasting(driver)
