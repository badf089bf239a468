"""The messages of one chat. Only the newest are mounted; older ones come when the person scrolls to the top."""

from __future__ import annotations

import asyncio
import itertools
import time

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Static

from pagechat.app.commands.all import COMMANDS
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message
from pagechat.app.painting import LaidOutOnce
from pagechat.app.widgets.candidates import view_of
from pagechat.app.widgets.line import Line
from pagechat.app.widgets.messages import Answer, Question

WINDOW = 24
"""Messages mounted at first, and more by each step to the top, at most."""
WINDOW_CHARACTERS = 4_000
"""Of these messages together: a screen full. At least one message is mounted, however long."""
MOST = 72
"""Messages mounted at most while new ones arrive."""
REDRAW_S = 0.08
DUTY = 0.15
"""Most of the time that redrawing a growing answer may take: a slow redraw makes redraws rarer."""


class Transcript(LaidOutOnce, VerticalScroll):
    """Draws its conversation when `sync` is called; follows the end while the person is at the end.

    While it has the focus, a cursor is on one message, and the keys of the message commands work.
    """

    BINDINGS = [  # noqa: RUF012 - declared so by Textual
        Binding("up,k,alt+up", "select(-1)", show=False),
        Binding("down,j,alt+down", "select(1)", show=False),
        *(binding for command in COMMANDS if command.place == "messages" for binding in command.bindings("screen.")),
    ]

    class Chosen(Event):
        """The cursor is on another message, or on none."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(can_focus=True)
        self.conversation = conversation
        self.selected: Message | None = None
        self.tour_offered = False
        """While the chat is empty."""
        self._begin = _window(conversation.messages, len(conversation.messages))
        """Index of the first mounted message."""
        self._mounted: list[Message] = []
        self._drawn = -1
        self._next_at = 0.0
        self._drawing = asyncio.Lock()
        self._earlier = Line(classes="earlier")
        self._welcome = Line(classes="welcome")
        # One child, never shorter than the view: an anchored container with less would scroll above its top.
        self._list = Messages(self._earlier, self._welcome, classes="messages")

    def compose(self) -> ComposeResult:
        yield self._list

    def on_mount(self) -> None:
        if self.selected is None:  # a search may have come before this
            self.anchor()

    @property
    def stale(self) -> bool:
        return self._drawn != self.conversation.version

    @property
    def _views(self) -> list[Question | Answer]:
        return [view for view in self._list.children if isinstance(view, Question | Answer)]

    async def sync(self, now: bool = False) -> None:
        """Draw what is new; at most twelve times a second, unless `now`."""
        if not self.stale or (time.monotonic() < self._next_at and not now) or (self._drawing.locked() and not now):
            return
        async with self._drawing:
            if not self._list.is_mounted:
                return
            started = time.monotonic()
            self._drawn = self.conversation.version
            with self.app.batch_update():
                await self._mount_and_remove()
                for view in self._views:
                    if isinstance(view, Answer):
                        await view.sync()
                if len(self._mounted) > MOST and self.is_vertical_scroll_end:
                    await self._prune()
                self._describe()
            self._next_at = started + max(REDRAW_S, (time.monotonic() - started) / DUTY)

    async def show_earlier(self) -> None:
        """Mount messages before the first mounted one, and keep the view where it is."""
        first = next(iter(self._views), None)
        if await self._mount_earlier() and first is not None:
            self.call_after_refresh(self.scroll_to_widget, first, animate=False, top=True, immediate=True)

    async def _mount_earlier(self, at_least: int | None = None) -> bool:
        """Those of a window, or back to `at_least`; False when there are none."""
        async with self._drawing:
            if self._begin == 0:
                return False
            begin = _window(self.conversation.messages, self._begin)
            begin = begin if at_least is None else min(begin, at_least)
            earlier = self.conversation.messages[begin : self._begin]
            views = [view_of(message) for message in earlier]
            await self._list.mount_all(views, after=self._welcome)
            for view in views:
                if isinstance(view, Answer):
                    await view.sync()
            self._begin = begin
            self._mounted = [*earlier, *self._mounted]
            self._describe()
        return True

    # -- the cursor ----------------------------------------------------------------------------

    async def select(self, message: Message) -> None:
        """Put the cursor on a message and bring it into view, mounted or not."""
        messages = self.conversation.messages
        if message not in messages:
            return
        if messages.index(message) < self._begin:
            await self._mount_earlier(messages.index(message))
        self._mark(message)
        if (view := self.view_of(message)) is not None:  # what was just mounted has its place after the next layout
            self.call_after_refresh(self.scroll_to_widget, view, animate=False, immediate=True)

    def view_of(self, message: Message) -> Question | Answer | None:
        """The mounted widget of a message."""
        return next((view for view in self._views if view.message is message), None)

    def step_selection(self, by: int) -> None:
        mounted = self._mounted
        if not mounted:
            return
        if self.selected in mounted:
            at = mounted.index(self.selected) + by
            if at < 0:
                self.run_worker(self.show_earlier(), group="earlier")
            self._mark(mounted[max(0, min(at, len(mounted) - 1))])
        else:
            self._mark(mounted[-1])

    def deselect(self) -> None:
        self._mark(None)

    def action_select(self, by: int) -> None:
        self.step_selection(by)

    def toggle_reasoning(self, message: Message) -> None:
        for view in self._views:
            if isinstance(view, Answer) and view.message is message:
                view.unfolded = not view.unfolded
                view.run_worker(view.sync(), group="fold")

    def on_blur(self) -> None:
        self.deselect()

    def _mark(self, message: Message | None) -> None:
        self.selected = message
        for view in self._views:
            chosen = view.message is message
            view.set_class(chosen, "-selected")
            if chosen:
                self.release_anchor()
                self.scroll_to_widget(view, animate=False)
        self.post_message(self.Chosen())

    # -- inside --------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self._begin:
            self.run_worker(self.show_earlier(), group="earlier")

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._earlier:
            self.run_worker(self.show_earlier(), group="earlier")
            return
        for widget in event.widget.ancestors_with_self if event.widget else ():
            if isinstance(widget, Question | Answer):
                self._mark(widget.message)
                return

    async def _mount_and_remove(self) -> None:
        """Make the mounted messages those of the conversation from `_begin` on."""
        self._begin = min(self._begin, len(self.conversation.messages))
        wanted = self.conversation.messages[self._begin :]
        if wanted == self._mounted:
            return
        kept = set(wanted)
        for view in self._views:
            if view.message not in kept:
                await view.remove()
        standing = {view.message: view for view in self._views}
        after: Static | Question | Answer = self._welcome
        for stands, run in itertools.groupby(wanted, key=lambda message: message in standing):
            views = [standing[message] if stands else view_of(message) for message in run]
            if not stands:
                await self._list.mount_all(views, after=after)
            after = views[-1]
        self._mounted = list(wanted)
        if self.selected is not None and self.selected not in kept:
            self.selected = None

    async def _prune(self) -> None:
        excess = len(self._mounted) - WINDOW
        for view in self._views[:excess]:
            await view.remove()
        self._begin += excess
        self._mounted = self._mounted[excess:]

    def offer_tour(self, offered: bool) -> None:
        self.tour_offered = offered
        self._describe()

    def _describe(self) -> None:
        self._earlier.display = self._begin > 0
        self._earlier.show(Content(f"↑ {self._begin:,} earlier messages (page up, or click)"))
        self._welcome.display = not self.conversation.messages
        if not self.conversation.messages:
            hint = "\nAs the answer grows, the map fills with the blocks it takes."
            tour = "\nNew here? /tour shows how it works." if self.tour_offered else ""
            self._welcome.show(Content.assemble(("Ask something.", "bold"), (hint, "$muted"), (tour, "$accent")))


class Messages(LaidOutOnce, Vertical):
    """Under each other."""


def _window(messages: list[Message], end: int) -> int:
    """Index from which on the messages before `end` are mounted."""
    begin, characters = end, 0
    while begin > 0 and end - begin < WINDOW and (characters < WINDOW_CHARACTERS or begin == end):
        begin -= 1
        characters += len(messages[begin].content)
    return begin
