"""The one place where errors of the app end. Nothing that goes wrong in a command, a key, a timer, a worker or while
drawing ends the app.

An expected error (one of `EXPECTED`: the store, the daemon, a file) is told in its own words. An unexpected one is a
bug: its traceback goes to a file, the person is told so once, and the app goes on.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import RenderableType
from textual.app import App
from textual.message import Message
from textual.message_pump import MessagePump
from textual.worker import WorkerFailed

from pagechat.app.conversation import ChatBusy
from pagechat.app.presets import PresetError
from pagechat.app.servers import ServerError
from pagechat.app.undo import CannotUndo
from pagechat.client import ClientError
from pagechat.store import StoreError, data_dir
from pagechat.text_safety import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

EXPECTED = (StoreError, ClientError, PresetError, ServerError, ChatBusy, CannotUndo, OSError)
PATIENCE_S = 5.0
"""How long a command waits for the daemon: an engine that stands still is told, not waited for."""
AGAIN_S = 30.0
"""The same unexpected error is told and logged once in this time: one in drawing comes with every frame."""
LOG_LIMIT = 1024 * 1024


class EngineSilent(ClientError):
    """The engine did not answer in time; the message says so."""


async def answered(question: Awaitable[T], patience_s: float = PATIENCE_S) -> T:
    """What the daemon answers. Raises EngineSilent when it takes longer than `patience_s`, and its own errors."""
    try:
        async with asyncio.timeout(patience_s):
            return await question
    except TimeoutError:
        raise EngineSilent(f"The engine has not answered for {patience_s:g} s. Try it again when it does.") from None


def log_path() -> Path:
    """Where tracebacks of unexpected errors go."""
    return data_dir() / "errors.log"


def in_words(error: BaseException) -> str:
    """An expected error, for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


class Boundary:
    """Tells errors through `tell(text, title)`."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._told: dict[str, float] = {}
        self.unexpected: list[BaseException] = []
        """The last of them."""

    def meet(self, error: BaseException) -> None:
        """An error that nothing else has dealt with. Raises nothing."""
        if isinstance(error, WorkerFailed):
            error = error.error
        if isinstance(error, EXPECTED):
            self._tell(sanitize(in_words(error)), "")
            return
        self.unexpected = [*self.unexpected[-9:], error]
        where = traceback.extract_tb(error.__traceback__)[-1:]
        key = f"{type(error).__name__} {where[0].filename}:{where[0].lineno}" if where else type(error).__name__
        now = time.monotonic()
        if now - self._told.get(key, -AGAIN_S) < AGAIN_S:
            return
        self._told[key] = now
        kept = _log(error)
        self._tell(sanitize(f"{type(error).__name__}: {str(error)[:200]}\n{kept}"), "A fault in pagechat; it goes on")


def _log(error: BaseException) -> str:
    """Append the traceback to the file, and say where it is."""
    text = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
    path = log_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        if path.exists() and path.stat().st_size > LOG_LIMIT:
            flags |= os.O_TRUNC
        with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
            file.write(time.strftime("%Y-%m-%d %H:%M:%S\n").encode() + text + b"\n")
    except OSError as failed:
        return f"It could not be written to {path}: {in_words(failed)}"
    return f"How it came about is in {path}"


class Unending(App[None]):
    """An app whose widgets, timers and workers meet a boundary. Before its first screen stands, errors end it: there is
    nothing to tell them on."""

    boundary: Boundary | None = None

    def _handle_exception(self, error: Exception) -> None:
        # Textual's one way out for errors of widgets, timers and workers.
        if self.boundary is None:
            super()._handle_exception(error)
        else:
            self.boundary.meet(error)

    def panic(self, *renderables: RenderableType) -> None:
        """Textual's end without a keyboard: no success."""
        self._return_code = 1
        super().panic(*renderables)


async def _dispatched(self: MessagePump, message: Message) -> None:
    """`MessagePump._dispatch_message`, but an error in a handler ends that handler and not the widget's loop."""
    try:
        await _dispatch(self, message)
    except Exception as error:
        app: Any = self.app
        if getattr(app, "boundary", None) is None:
            raise
        app.boundary.meet(error)


_dispatch = MessagePump._dispatch_message
MessagePump._dispatch_message = _dispatched  # type: ignore[method-assign]
