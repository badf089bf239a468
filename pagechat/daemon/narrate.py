"""What a daemon says on stderr while it serves: a progress bar in a terminal, plain lines anywhere else.

Text from elsewhere (model names, engine errors) is shown as the characters it is, never as markup or escapes.
"""

from __future__ import annotations

import logging
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from engine.protocol import LoadProgress
from pagechat.text_safety import sanitize

_LINE_EVERY_S = 2.0


class Narrator(logging.Handler):
    """Also the handler of the daemon's log records, so that a line and the bar do not disturb each other."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_stage = ""
        self._last_line = 0.0

    def say(self, text: str) -> None:
        self._console.print(f"pagechat-daemon: {sanitize(text)}", markup=False)

    def emit(self, record: logging.LogRecord) -> None:
        self.say(self.format(record))

    def progress(self, load: LoadProgress | None) -> None:
        """Shows what the engine does; None: it does nothing more."""
        if self._console.is_terminal:
            self._draw(load)
        elif load is not None:
            self._print(load)

    def _draw(self, load: LoadProgress | None) -> None:
        if load is None:
            if self._bar is not None:
                self._bar.stop()
                self._bar = self._task = None
            return
        if self._bar is None or self._task is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("")
            self._bar.start()
        what = sanitize(f"{load.stage} {load.detail}")
        self._bar.update(self._task, description=what, completed=load.done, total=load.total or None)

    def _print(self, load: LoadProgress) -> None:
        stage = f"{load.stage} {load.detail}"
        now = time.monotonic()
        if stage != self._last_stage or (load.total and now - self._last_line > _LINE_EVERY_S):
            share = f" {load.done / load.total:.0%}" if load.total else ""
            self.say(f"{stage}{share}")
            self._last_stage, self._last_line = stage, now
