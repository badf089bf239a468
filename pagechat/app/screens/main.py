"""The main screen: tabs above, the chat to the left, the memory to the right; one of the two where it is narrow."""

from __future__ import annotations

import asyncio
import inspect
from typing import ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, TextArea

from engine.blocks.observe.mirror import MirrorGap
from engine.protocol import ModelInfo
from pagechat.app.block_names import BlockNames
from pagechat.app.block_texts import BlockTexts
from pagechat.app.boundary import Unending
from pagechat.app.client_api import Client
from pagechat.app.commands.all import BY_ID, COMMANDS, completions, parse_slash
from pagechat.app.commands.messages import record
from pagechat.app.conversation import Conversation
from pagechat.app.gauges import Gauges
from pagechat.app.keeper import Keeper
from pagechat.app.link import Link, LinkState
from pagechat.app.message import Message
from pagechat.app.pace import Pace
from pagechat.app.painting import FrugalCompositor
from pagechat.app.panels import PaneData
from pagechat.app.pool_view import PoolView
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.sending import Sender
from pagechat.app.tabs import Tabs
from pagechat.app.undo import Undo
from pagechat.app.widgets.badge import Badge
from pagechat.app.widgets.banner import Banner
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.completions import Completions
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.memory_pane import MemoryPane
from pagechat.app.widgets.messages import Prose
from pagechat.app.widgets.queue_view import QueueView
from pagechat.app.widgets.tab_bar import Tab, TabBar
from pagechat.app.widgets.tour_card import TourCard
from pagechat.app.widgets.transcript import Transcript
from pagechat.store import StoreError
from pagechat.text_safety import sanitize

TICK_S = 0.05
TEXTS_EVERY = 10
"""Ticks."""
LAST_WORD_S = 0.3
"""How long leaving waits for the last word of the daemon on an answer."""


class MainScreen(Screen[None]):
    """Draws the tabs' conversations and the pool view, ten times a second at most, and only what changed.

    What a person can do is in `pagechat.app.commands`; each of these is run with this screen.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (50, "-narrow"), (100, "-wide")]  # noqa: RUF012 - declared so by Textual
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-middle"), (32, "-high")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        *(binding for command in COMMANDS if command.place == "anywhere" for binding in command.bindings()),
        Binding("ctrl+end", "end_of_chat", show=False, priority=True),
        *(Binding(f"alt+{n}", f"choose_tab({n - 1})", show=False, priority=True) for n in range(1, 10)),
    ]

    def __init__(self, tabs: Tabs, view: PoolView, keeper: Keeper, tour_card: TourCard | None = None) -> None:
        """`tour_card`: shown at the foot, for the guided tour."""
        super().__init__()
        self._compositor = FrugalCompositor()
        self._tour_card = tour_card
        self.tabs = tabs
        self.view = view
        self.keeper = keeper
        self.undo = Undo()
        self.gauges = Gauges()
        self._texts = BlockTexts(lambda: self.client, tabs.find, self._block_size, self._arrived)
        self._names = BlockNames(lambda: self.client, self._arrived)
        self.sender = Sender(lambda: self.client, keeper.flush, view.preempted_times)
        self._link: Link | None = None
        self._transcripts: dict[str, Transcript] = {}
        self._shown: Conversation | None = None
        """The chat that the text in the input belongs to."""
        self._pace = Pace()
        self._ticks = 0
        """At which something was drawn."""
        self._pane_title = ""
        self._code_block: tuple[object, int] = (None, 0)

    def attach(self, link: Link) -> None:
        """The connection that answers are asked through."""
        self._link = link

    @property
    def link_state(self) -> LinkState:
        return self._link.state if self._link else LinkState("connecting")

    @property
    def client(self) -> Client | None:
        """The connection while the engine is ready; None while it is not."""
        return self._link.client if self._link and self.link_state.phase == "ready" else None

    @property
    def model(self) -> ModelInfo | None:
        status = self.link_state.status
        return status.model if status else None

    def meet(self, error: Exception) -> None:
        """An error that a command ended with is told."""
        boundary = cast("Unending", self.app).boundary
        if boundary is None:
            raise error
        boundary.meet(error)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def block_map(self) -> BlockMap:
        return self.query_one(BlockMap)

    @property
    def memory_pane(self) -> MemoryPane:
        return self.query_one(MemoryPane)

    @property
    def transcript(self) -> Transcript:
        """Of the active chat."""
        return self._transcript_of(self.tabs.active)

    def _transcript_of(self, conversation: Conversation) -> Transcript:
        """Made when the chat has none yet: a command may come before the chat was first drawn."""
        transcript = self._transcripts.get(conversation.id)
        if transcript is None:
            transcript = self._transcripts[conversation.id] = Transcript(conversation)
            self.query_one("#transcripts").mount(transcript)
        return transcript

    def compose(self) -> ComposeResult:
        offered = Completions()
        with Horizontal(id="header"):
            yield TabBar(id="tabs")
            yield Badge()
        with Horizontal(id="body"):
            with Vertical(id="chat"):
                yield Banner()
                yield Vertical(id="transcripts")
                yield QueueView()
                yield offered
                yield Composer(offered, self._take_back)
            yield MemoryPane(self.view, id="memory")
        if self._tour_card is not None:
            yield self._tour_card
        yield Footer(compact=True, show_command_palette=True)

    async def on_mount(self) -> None:
        self.composer.focus()
        first = self._shown = self.tabs.active
        for text in await self.keeper.begin():
            self.call_after_refresh(self.notify, text, timeout=10, markup=False)
        try:
            await self.tabs.restore()
        except StoreError as error:
            text = f"The open chats could not be restored: {error}"  # told when there is a screen to tell it on
            self.call_after_refresh(self.notify, text, severity="error", markup=False)
        self.note_text()
        if first.draft and self.tabs.find(first.id) is None:  # somebody types already: that text keeps its place
            self.tabs.insert(first)
        self._fill_composer()
        await self.show_active()
        self.set_interval(TICK_S, self._tick)

    # -- drawing -------------------------------------------------------------------------------

    async def show_active(self) -> None:
        """Bring the active tab's chat to the front, drawn up to date."""
        conversation = self.tabs.active
        open_ids = {c.id for c in self.tabs.conversations}
        for chat_id in [chat_id for chat_id in self._transcripts if chat_id not in open_ids]:
            await self._transcripts.pop(chat_id).remove()
        transcript = self._transcripts.get(conversation.id)
        if transcript is None:
            transcript = self._transcripts[conversation.id] = Transcript(conversation)
            await self.query_one("#transcripts").mount(transcript)
        for chat_id, other in self._transcripts.items():
            other.display = chat_id == conversation.id
        await transcript.sync(now=True)
        self.show_tabs()
        self._show_texts()

    async def _tick(self) -> None:
        """Draw one part of the screen: a key that comes meanwhile waits for that part, and not for all of them."""
        if self.sender.pump(self.tabs.conversations):
            self.remember_tabs()
        if not self._pace.may_draw():
            return
        self._ticks += 1
        transcript = self._transcripts.get(self.tabs.active.id)
        if self._ticks % 2 and transcript is not None:
            await transcript.sync()
        elif self._ticks % TEXTS_EVERY:
            self.query_one(MemoryPane).sync_map()
        else:
            if self.view.moving or self.tabs.streaming:  # a quiet pool is not worth minutes of flat lines
                self.gauges.sample(self.view)
            self._show_texts()
        self.show_tabs()

    def show_tabs(self) -> None:
        self.tabs.active.unread = False
        settled = self._ticks % TEXTS_EVERY == 0
        tabs = []
        for conversation, old in zip(self.tabs.conversations, self._old_tabs(), strict=True):
            state = conversation.state
            fresh = round(conversation.rate.tokens_per_s) if state == "streaming" else 0
            rate = fresh if settled or old is None or state != old.state else old.rate
            letter, queued = self.tabs.letter(conversation), len(conversation.queue)
            tabs.append(
                Tab(letter, conversation.label, state, rate, queued, conversation.pinned, conversation.elsewhere)
            )
        self.query_one(TabBar).show(tabs, self.tabs.index)
        self.set_class(self.tabs.active.choosing is not None, "-choosing")
        self.query_one(QueueView).sync(self.tabs.active, self.tabs.active.editing is not None, self.composer.size.width)

    def _old_tabs(self) -> list[Tab | None]:
        """What the tab bar shows for each conversation now, as far as the tabs stand in the same places."""
        shown: list[Tab | None] = list(self.query_one(TabBar).tabs)
        count = len(self.tabs.conversations)
        return (shown + [None] * count)[:count]

    def _show_texts(self) -> None:
        self.view.tidy_letters()
        pane = self.query_one(MemoryPane)
        pane.sync_text(
            PaneData(
                view=self.view,
                gauges=self.gauges,
                model=self.model,
                active=self.tabs.active.id,
                selected=self.block_map.selected,
                chats=self.tabs.conversations,
                name_of=self.name_of,
                text_of=self._texts.get,
                hash_of=lambda block: self._names.get(block, self.view.written(block)),
            ),
            moves=bool(self.tabs.streaming),
        )
        title = self._title()
        if title != self._pane_title:
            self._pane_title = title
            pane.border_title = Content(title)
        self.query_one(Badge).sync(self.link_state, self.view.tokens_per_s())

    def _arrived(self) -> None:
        """There is more to tell of the block under the cursor."""
        if self.is_mounted:
            self.memory_pane.redraw_panel()

    def _title(self) -> str:
        """What runs where, for the frame of the memory pane."""
        model, mirror = self.model, self.view.mirror
        if model is None or mirror is None:
            return "memory"
        name = " ".join(sanitize(model.name).split())
        return f"{name[-40:]} · {model.device} {model.dtype} · {mirror.block_size}-token blocks"

    def name_of(self, session: str) -> str:
        """What to call the owner of a block."""
        conversation = self.tabs.find(session)
        return conversation.label if conversation else " ".join(sanitize(session[:24]).split()) or "(no name)"

    def _block_size(self) -> int | None:
        return self.view.mirror.block_size if self.view.mirror else None

    def show_link(self, state: LinkState) -> None:
        if self.is_mounted:
            self.query_one(Banner).show(state)

    @on(Banner.Retry)
    def retry_link(self) -> None:
        """Look for the daemon again: after a failure, or now instead of later."""
        if self._link is not None:
            self._link.retry()

    def move_link(self) -> None:
        """Leave this server for the one that was chosen."""
        if self._link is not None:
            self._link.move()

    # -- asking --------------------------------------------------------------------------------

    @on(Composer.Submitted)
    async def _submitted(self, event: Composer.Submitted) -> None:
        conversation, text = self.tabs.active, event.text
        if event.chat is not None and event.chat is not conversation:  # sent, and the tab left before this was read
            event.chat.draft = "\n".join(part for part in (text, event.chat.draft) if part)
            return
        if not text.strip():
            if conversation.queue:
                self.sender.release(conversation)
            return
        slash = parse_slash(text)
        if isinstance(slash, str):
            self.composer.give_back(text)
            self.notify(slash, severity="warning", markup=False)
        elif slash is not None:
            await self.action_command(slash[0].id, slash[1])
        elif conversation.editing is not None:
            await self._send_edited(conversation, conversation.editing, text)
        else:
            self.undo.no_redo()
            self.sender.submit(conversation, text)
            await self.follow()

    async def _send_edited(self, conversation: Conversation, message: Message, text: str) -> None:
        if message not in conversation.messages:
            self.end_edit(conversation)
            self.composer.give_back(text)
            self.notify("The message is gone; what you wrote can be sent as a new one.", severity="warning")
            return
        if conversation.followed is not None or not self.ready_to_ask():
            self.composer.give_back(text)
            return
        await conversation.stop(self.client, 0)
        before = list(conversation.messages)
        self.end_edit(conversation)
        self.sender.edit(conversation, before.index(message), text)
        record(self, conversation, "edit of a message", before)
        await self.follow()

    def begin_edit(self, conversation: Conversation, message: Message) -> None:
        """The next text that is sent takes the place of `message`. What was typed comes back after it."""
        self.note_text()
        if conversation.editing is not message:
            self.composer.remember(conversation.edit_text)
            conversation.editing, conversation.edit_text = message, message.content
        self._fill_composer()
        self.to_composer()
        self.show_tabs()

    def end_edit(self, conversation: Conversation) -> None:
        """The message stays, or was replaced; the draft is back."""
        conversation.editing, conversation.edit_text = None, ""
        if conversation is self._shown:
            self._fill_composer()
        self.show_tabs()

    def note_text(self) -> None:
        """What stands in the input is the draft of the chat that it belongs to."""
        chat = self._shown
        if chat is None:
            return
        if chat.editing is not None:
            chat.edit_text = self.composer.text
        else:
            chat.draft = self.composer.text

    def write(self, text: str) -> None:
        """Text into the input of the active chat, behind what stands there."""
        chat = self.tabs.active
        chat.draft = "\n\n".join(part for part in (chat.draft, text) if part)
        self._fill_composer()

    def _fill_composer(self) -> None:
        """The input has the text of the active chat from now on."""
        self._shown = chat = self.tabs.active
        text = chat.edit_text if chat.editing is not None else chat.draft
        self.composer.chat = chat
        if self.composer.text != text:
            self.composer.fill(text)

    def ready_to_ask(self) -> bool:
        """The engine answers now; tells the person when it does not."""
        if self.client is None:
            self.notify("The engine is not ready yet. Your text stays here.", severity="warning", markup=False)
        return self.client is not None

    async def follow(self) -> None:
        """Draw what was just asked, and stay at the end of the chat."""
        transcript = self.transcript
        transcript.deselect()
        await transcript.sync(now=True)
        transcript.anchor()
        self.show_tabs()
        self.remember_tabs()

    def _take_back(self) -> str | None:
        taken = self.sender.take_back(self.tabs.active)
        self.show_tabs()
        return taken

    @on(TextArea.Changed, "#composer")
    def _typed(self) -> None:
        self.note_text()
        self.query_one(Completions).offer(completions(self.composer.text) if len(self.composer.text) < 40 else [])

    # -- commands ------------------------------------------------------------------------------

    async def action_command(self, command_id: str, argument: str = "") -> None:
        """Run a command of `pagechat.app.commands`. What goes wrong in it is told; it raises nothing."""
        self.note_text()
        try:
            if command_id == "answer.stop" and self.tabs.active.editing is not None:
                self.composer.remember(self.tabs.active.edit_text)
                self.end_edit(self.tabs.active)
                return
            result = BY_ID[command_id].run(self, argument)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            self.meet(error)

    def copy(self, what: str, text: str) -> None:
        """To the clipboard."""
        self.app.copy_to_clipboard(text)
        self.notify(f"{what} is copied ({len(text):,} characters).", markup=False)

    def next_code_block(self, count: int) -> int:
        """Which of `count` code blocks to copy: the last; then, asked again at once, the one before it."""
        key = (self.tabs.active, self.transcript.selected, count)
        before, number = self._code_block
        number = (number - 1) % count if before == key else count - 1
        self._code_block = (key, number)
        return number

    # -- tabs ----------------------------------------------------------------------------------

    async def action_choose_tab(self, index: int) -> None:
        if index < len(self.tabs.conversations):
            self.tabs.choose(index)
            await self.switched()

    @on(TabBar.Chosen)
    async def _tab_chosen(self, event: TabBar.Chosen) -> None:
        await self.action_choose_tab(event.index)

    @on(TabBar.NewTab)
    async def _tab_wanted(self) -> None:
        await self.action_command("chat.new")

    async def switched(self) -> None:
        """Another tab is active: show it, with the text that was being written there."""
        if self._shown is not self.tabs.active:
            self.note_text()
            self._fill_composer()
        self.view.redraw_all()
        await self.show_active()
        self.to_composer()
        self.remember_tabs()

    async def show_message(self, conversation: Conversation, stored_id: int) -> None:
        """Bring a message that a search found into view."""
        message = next((m for m in conversation.messages if m.stored_id == stored_id), None)
        if message is not None:
            self.transcript.focus()
            await self.transcript.select(message)

    def thaw(self) -> None:
        """The map catches up with the engine."""
        try:
            self.view.thaw()
        except MirrorGap:
            if self._link is not None:
                self._link.resync()

    def remember_tabs(self) -> None:
        self.tabs.remember()

    # -- moving about --------------------------------------------------------------------------

    def to_composer(self) -> None:
        self.set_class(False, "-memory")
        self.composer.focus()

    def to_map(self) -> None:
        self.set_class(True, "-memory")
        self.block_map.focus()
        self.call_after_refresh(self._show_texts)

    def scroll_chat(self, pages: int) -> None:
        """One page up (-1) or down (1)."""
        transcript = self.transcript
        if pages < 0 and transcript.scroll_y <= 0:
            self.run_worker(transcript.show_earlier(), group="earlier")
        elif pages < 0:
            transcript.scroll_page_up(animate=False)
        else:
            transcript.scroll_page_down(animate=False)

    def action_end_of_chat(self) -> None:
        self.transcript.anchor()

    @on(Prose.LinkClicked)
    def _link_clicked(self, event: Prose.LinkClicked) -> None:
        event.stop()
        href = event.href
        if not href.startswith(("http://", "https://", "mailto:")):
            self.notify(f"Not opened: {sanitize(href[:200])}", markup=False)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.app.open_url(href)

        self.app.push_screen(Confirm("Open this link in the browser?", href[:400], "Open", "No"), answered)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._show_texts)

    async def leave(self) -> None:
        """Stop what streams, with its text kept. An engine that stands still is not waited for."""
        self.note_text()
        client = self._link.client if self._link else None
        await asyncio.gather(*(conversation.stop(client, LAST_WORD_S) for conversation in self.tabs.streaming))
