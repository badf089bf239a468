"""The main screen: tabs above, the chat to the left, the memory to the right; one of the two where it is narrow."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Markdown

from engine.protocol import ModelInfo
from pagechat.app.conversation import Conversation
from pagechat.app.keeper import Keeper
from pagechat.app.link import Link, LinkState
from pagechat.app.pool_view import PoolView
from pagechat.app.screens.chats import ChatsScreen
from pagechat.app.screens.dialogs import AskLine, Confirm
from pagechat.app.tabs import Tabs
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.memory_pane import Line, MemoryPane
from pagechat.app.widgets.tab_bar import Tab, TabBar
from pagechat.app.widgets.transcript import Transcript
from pagechat.store import StoreError
from pagechat.text_safety import sanitize

TICK_S = 0.1
SPARKS = "▁▂▃▄▅▆▇█"


class MainScreen(Screen[None]):
    """Draws the tabs' conversations and the pool view, ten times a second at most, and only what changed."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (50, "-narrow"), (100, "-wide")]  # noqa: RUF012 - declared so by Textual
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-high")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "new_chat", "New"),
        Binding("ctrl+o", "chats", "Chats"),
        Binding("f2", "rename", "Rename", show=False),
        Binding("alt+w", "close_chat", "Close", show=False, priority=True),
        Binding("f3", "memory", "Memory"),
        Binding("escape", "stop", "Stop"),
        Binding("f1,question_mark", "app.help", "Help", key_display="f1"),
        Binding("ctrl+pagedown", "step_tab(1)", show=False, priority=True),
        Binding("ctrl+pageup", "step_tab(-1)", show=False, priority=True),
        Binding("ctrl+end", "end_of_chat", show=False, priority=True),
        Binding("left_square_bracket", "step_block(-1)", show=False),
        Binding("right_square_bracket", "step_block(1)", show=False),
        *(Binding(f"alt+{n}", f"choose_tab({n - 1})", show=False, priority=True) for n in range(1, 10)),
    ]

    def __init__(self, tabs: Tabs, view: PoolView, keeper: Keeper) -> None:
        super().__init__()
        self.tabs = tabs
        self.view = view
        self._keeper = keeper
        self._link: Link | None = None
        self._transcripts: dict[str, Transcript] = {}
        self._ticks = 0
        self._pane_title = ""
        self._rates: list[float] = [0.0] * 8

    def attach(self, link: Link) -> None:
        """The connection that answers are asked through."""
        self._link = link

    @property
    def link_state(self) -> LinkState:
        return self._link.state if self._link else LinkState("connecting")

    @property
    def model(self) -> ModelInfo | None:
        status = self.link_state.status
        return status.model if status else None

    def compose(self) -> ComposeResult:
        with Horizontal(id="header"):
            yield TabBar(id="tabs")
            yield Line("badge")
        with Horizontal(id="body"):
            with Vertical(id="chat"):
                yield Vertical(id="transcripts")
                yield Composer(id="composer")
            yield MemoryPane(self.view, self.name_of, id="memory")
        yield Footer(compact=True, show_command_palette=True)

    async def on_mount(self) -> None:
        self.query_one(Composer).focus()
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
        self._show_tabs()
        self._show_texts()

    async def _tick(self) -> None:
        self._ticks += 1
        self.query_one(MemoryPane).sync_map()
        transcript = self._transcripts.get(self.tabs.active.id)
        if transcript is not None:
            await transcript.sync()
        if self._ticks % 5 == 0:
            self._show_texts()
        self._show_tabs()

    def _show_tabs(self) -> None:
        self.tabs.active.unread = False
        tabs = [Tab(self.tabs.letter(c), c.label, c.state) for c in self.tabs.conversations]
        self.query_one(TabBar).show(tabs, self.tabs.index)

    def _show_texts(self) -> None:
        self.view.tidy_letters()
        pane = self.query_one(MemoryPane)
        pane.sync_text(self.model, self.tabs.active.id)
        title = self._title()
        if title != self._pane_title:
            self._pane_title = title
            pane.border_title = Content(title)
        self.query_one("#badge", Line).show(self._badge())

    def _title(self) -> str:
        """What runs where, for the frame of the memory pane."""
        model, mirror = self.model, self.view.mirror
        if model is None or mirror is None:
            return "memory"
        name = " ".join(sanitize(model.name).split())
        return f"{name[-40:]} · {model.device} {model.dtype} · {mirror.block_size}-token blocks"

    def _badge(self) -> Content:
        state = self.link_state
        if state.phase == "ready":
            rate = self.view.tokens_per_s()
            self._rates = [*self._rates[1:], rate]
            top = max(*self._rates, 1.0)
            spark = "".join(SPARKS[min(7, int(7 * value / top + 0.5))] for value in self._rates)
            return Content.assemble(
                (spark, "$accent" if rate else "$muted"),
                (f" {rate:6.1f} tok/s ", "bold" if rate else "$muted"),
            )
        if state.phase == "loading":
            load = state.status.load if state.status else None
            percent = f" {100 * load.done // load.total} %" if load and load.total else ""
            return Content.styled(f"◌ engine {load.stage if load else 'restarting'}{percent} ", "$warning")
        text = {"connecting": "◌ connecting ", "lost": "! daemon gone, trying again ", "failed": "! engine failed "}
        return Content.styled(text[state.phase], "bold $error" if state.phase != "connecting" else "$warning")

    def name_of(self, session: str) -> str:
        """What to call the owner of a block."""
        conversation = self.tabs.find(session)
        return conversation.label if conversation else " ".join(sanitize(session[:24]).split()) or "(no name)"

    # -- asking --------------------------------------------------------------------------------

    @on(Composer.Submitted)
    async def _send(self, event: Composer.Submitted) -> None:
        conversation = self.tabs.active
        if conversation.streaming:
            self.notify("Still answering. Esc stops it; your text stays here.", markup=False)
            return
        if self.link_state.phase != "ready" or self._link is None:
            self.notify("The engine is not ready yet. Your text stays here.", severity="warning", markup=False)
            return
        first = not conversation.messages
        conversation.ask(event.text, self._link.client, self._keeper.flush)
        self.query_one(Composer).accept()
        transcript = self._transcripts[conversation.id]
        await transcript.sync(now=True)
        transcript.anchor()
        if first:
            await self._remember()

    async def action_stop(self) -> None:
        """Stop the answer; without one, back to the input."""
        conversation = self.tabs.active
        if conversation.streaming and self._link is not None:
            if not conversation.stopping:
                self.run_worker(conversation.stop(self._link.client), group="stop")
        else:
            self.set_class(False, "-memory")
            self.query_one(Composer).focus()

    # -- tabs ----------------------------------------------------------------------------------

    async def action_new_chat(self) -> None:
        self.tabs.new()
        await self._switched()

    async def action_choose_tab(self, index: int) -> None:
        if index < len(self.tabs.conversations):
            self.tabs.choose(index)
            await self._switched()

    async def action_step_tab(self, step: int) -> None:
        self.tabs.choose(self.tabs.index + step)
        await self._switched()

    @on(TabBar.Chosen)
    async def _tab_chosen(self, event: TabBar.Chosen) -> None:
        await self.action_choose_tab(event.index)

    @on(TabBar.NewTab)
    async def _tab_wanted(self) -> None:
        await self.action_new_chat()

    async def _switched(self) -> None:
        self.view.redraw_all()
        await self.show_active()
        self.set_class(False, "-memory")
        self.query_one(Composer).focus()
        await self._remember()

    async def _remember(self) -> None:
        try:
            await self.tabs.remember()
        except StoreError as error:
            self.notify(f"Not saved: {error}", severity="error", markup=False)

    def action_rename(self) -> None:
        conversation = self.tabs.active

        def renamed(title: str | None) -> None:
            if title:
                conversation.rename(title)
                self._show_tabs()

        self.app.push_screen(AskLine("Name of this chat", conversation.title), renamed)

    def action_close_chat(self) -> None:
        conversation = self.tabs.active

        def answered(close: bool | None) -> None:
            if close:
                self.run_worker(self._close(conversation), group="close")

        if conversation.streaming:
            question = Confirm(
                "Stop the answer and close?", "What is written so far is kept.", "Stop and close", "Stay"
            )
            self.app.push_screen(question, answered)
        else:
            answered(True)

    async def _close(self, conversation: Conversation) -> None:
        if conversation not in self.tabs.conversations:
            return
        await conversation.stop(self._link.client if self._link else None)
        self.tabs.close(conversation)
        await self._switched()

    def action_chats(self) -> None:
        self.run_worker(self._choose_chat(), group="chats", exclusive=True)

    async def _choose_chat(self) -> None:
        try:
            chats = await self._keeper.call(self._keeper.store.chats)
            choice = await self.app.push_screen_wait(ChatsScreen(chats, {c.id for c in self.tabs.conversations}))
            if choice is None:
                return
            what, chat_id = choice
            if what == "open":
                await self.tabs.open(chat_id)
            else:
                conversation = self.tabs.find(chat_id)
                if conversation is not None:
                    await self._close(conversation)
                    await self._keeper.flush()
                await self._keeper.call(self._keeper.store.delete_chat, chat_id)
            await self._switched()
        except StoreError as error:
            self.notify(f"The history cannot be read: {error}", severity="error", markup=False)

    # -- moving about --------------------------------------------------------------------------

    def action_memory(self) -> None:
        """Between the chat and the map."""
        block_map = self.query_one(BlockMap)
        to_map = self.focused is not block_map
        self.set_class(to_map, "-memory")
        (block_map if to_map else self.query_one(Composer)).focus()
        self.call_after_refresh(self._show_texts)

    def action_step_block(self, step: int) -> None:
        """The cursor to the next block of the active chat, in its table's order."""
        mirror = self.view.mirror
        tables = [t for t in mirror.tables.values() if t.session == self.tabs.active.id and t.blocks] if mirror else []
        if not tables:
            return
        blocks = max(tables, key=lambda table: table.seq).blocks
        block_map = self.query_one(BlockMap)
        at = blocks.index(block_map.selected) + step if block_map.selected in blocks else 0
        block_map.select(blocks[at % len(blocks)])

    def scroll_chat(self, pages: int) -> None:
        """One page up (-1) or down (1)."""
        transcript = self._transcripts[self.tabs.active.id]
        if pages < 0 and transcript.scroll_y <= 0:
            self.run_worker(transcript.show_earlier(), group="earlier")
        elif pages < 0:
            transcript.scroll_page_up(animate=False)
        else:
            transcript.scroll_page_down(animate=False)

    def action_end_of_chat(self) -> None:
        self._transcripts[self.tabs.active.id].anchor()

    @on(Markdown.LinkClicked)
    def _link_clicked(self, event: Markdown.LinkClicked) -> None:
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
        """Stop what streams, with its text kept."""
        client = self._link.client if self._link else None
        await asyncio.gather(*(conversation.stop(client) for conversation in self.tabs.streaming))
