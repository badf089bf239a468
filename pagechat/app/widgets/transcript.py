"""The messages of one chat. Only the newest are mounted; older ones come when the person scrolls to the top."""

from __future__ import annotations

import asyncio
import time

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from pagechat.app.conversation import Conversation
from pagechat.app.widgets.messages import Answer, view_of

WINDOW = 24
"""Messages mounted at first, and more by each step to the top."""
MOST = 72
"""Messages mounted at most while new ones arrive."""
REDRAW_S = 0.1
DUTY = 0.15
"""Most of the time that redrawing a growing answer may take: a slow redraw makes redraws rarer."""


class Transcript(VerticalScroll):
    """Draws its conversation when `sync` is called; follows the end while the person is at the end."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(can_focus=True)
        self.conversation = conversation
        self._begin = max(0, len(conversation.messages) - WINDOW)
        """Index of the first mounted message."""
        self._end = self._begin
        self._drawn = -1
        self._next_at = 0.0
        self._drawing = asyncio.Lock()
        self._earlier = Static(classes="earlier", markup=False)
        self._welcome = Static(classes="welcome", markup=False)
        # One child, never shorter than the view: an anchored container with less would scroll above its top.
        self._list = Vertical(self._earlier, self._welcome, classes="messages")

    def compose(self) -> ComposeResult:
        yield self._list

    def on_mount(self) -> None:
        self.anchor()

    @property
    def stale(self) -> bool:
        return self._drawn != self.conversation.version

    async def sync(self, now: bool = False) -> None:
        """Draw what is new; at most ten times a second, unless `now`."""
        if not self.stale or (time.monotonic() < self._next_at and not now) or (self._drawing.locked() and not now):
            return
        async with self._drawing:
            if not self._list.is_mounted:
                return
            started = time.monotonic()
            messages = self.conversation.messages
            self._drawn = self.conversation.version
            with self.app.batch_update():
                fresh = [view_of(message) for message in messages[self._end :]]
                if fresh:
                    await self._list.mount_all(fresh)
                    self._end += len(fresh)
                for answer in self._list.query_children(Answer):
                    await answer.sync()
                if self._end - self._begin > MOST and self.is_vertical_scroll_end:
                    await self._prune()
                self._describe()
            self._next_at = started + max(REDRAW_S, (time.monotonic() - started) / DUTY)

    async def show_earlier(self) -> None:
        """Mount the messages before the first mounted one, and keep the view where it is."""
        async with self._drawing:
            if self._begin == 0:
                return
            begin = max(0, self._begin - WINDOW)
            first = next(iter(self._list.query_children("Question, Answer")), None)
            views = [view_of(message) for message in self.conversation.messages[begin : self._begin]]
            await self._list.mount_all(views, after=self._welcome)
            for view in views:
                if isinstance(view, Answer):
                    await view.sync()
            self._begin = begin
            self._describe()
        if first is not None:
            self.call_after_refresh(self.scroll_to_widget, first, animate=False, top=True, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self._begin:
            self.run_worker(self.show_earlier(), group="earlier")

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._earlier:
            self.run_worker(self.show_earlier(), group="earlier")

    async def _prune(self) -> None:
        excess = self._end - self._begin - WINDOW
        for view in list(self._list.query_children("Question, Answer"))[:excess]:
            await view.remove()
        self._begin += excess

    def _describe(self) -> None:
        self._earlier.display = self._begin > 0
        self._earlier.update(Content(f"↑ {self._begin:,} earlier messages (page up, or click)"))
        self._welcome.display = not self.conversation.messages
        if not self.conversation.messages:
            hint = "\nAs the answer grows, the map fills with the blocks it takes."
            self._welcome.update(Content.assemble(("Ask something.", "bold"), (hint, "$muted")))
