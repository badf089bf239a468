"""All chats of the history: titles, and everything that was said. To open or delete one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from pagechat.app.keeper import Keeper
from pagechat.store import Chat, Hit, StoreError
from pagechat.store_search import FOUND
from pagechat.text_safety import sanitize

SHORTEST = 2
"""Letters from which what was said is searched, not the titles alone."""


@dataclass(frozen=True, slots=True)
class Choice:
    chat_id: str
    title: str
    message_id: int | None = None
    """The message that a search found."""
    delete: bool = False


class HistoryScreen(ModalScreen[Choice | None]):
    """Titles that match what is typed, and below them messages that hold these words."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back"),
        Binding("down", "step(1)", show=False),
        Binding("up", "step(-1)", show=False),
        Binding("ctrl+d", "delete", "Delete", priority=True),
        Binding("delete", "delete", show=False),  # in the list; in the input it deletes text
    ]

    def __init__(self, chats: list[Chat], open_now: set[str], keeper: Keeper, words: str = "") -> None:
        super().__init__()
        self._chats, self._open, self._keeper, self._words = chats, open_now, keeper, words
        self._listed: list[Choice] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog list"):
            yield Static(Content.styled(f"Chats ({len(self._chats):,})", "bold"), markup=False)
            yield Input(self._words, placeholder="search titles and everything that was said", compact=True)
            yield OptionList(markup=False, compact=True)
            yield Static(
                Content.styled("enter opens · ctrl+d deletes · esc goes back", "$muted"), classes="detail", markup=False
            )

    def on_mount(self) -> None:
        self._list([])
        if self._words:
            self._search()

    def on_input_changed(self) -> None:
        self._list([])
        self._search()

    def on_input_submitted(self) -> None:
        self._open_highlighted()

    def on_option_list_option_selected(self) -> None:
        self._open_highlighted()

    def action_step(self, step: int) -> None:
        listing = self.query_one(OptionList)
        if self._listed:
            listing.highlighted = ((listing.highlighted or 0) + step) % len(self._listed)

    def action_delete(self) -> None:
        choice = self._highlighted()
        if choice is not None:
            self.dismiss(Choice(choice.chat_id, choice.title, delete=True))

    def _highlighted(self) -> Choice | None:
        index = self.query_one(OptionList).highlighted
        return self._listed[index] if index is not None and index < len(self._listed) else None

    def _open_highlighted(self) -> None:
        choice = self._highlighted()
        if choice is not None:
            self.dismiss(choice)

    def _search(self) -> None:
        words = self.query_one(Input).value
        if len(words.strip()) >= SHORTEST:
            self.run_worker(self._find(words), group="search", exclusive=True)

    async def _find(self, words: str) -> None:
        try:
            hits = await self._keeper.call(self._keeper.store.search, words)
        except StoreError as error:
            self.notify(f"Not searched: {error}", severity="error", markup=False)
            return
        if words == self.query_one(Input).value:
            self._list(hits)

    def _list(self, hits: list[Hit]) -> None:
        wanted = self.query_one(Input).value.casefold().split()
        chats = [chat for chat in self._chats if all(word in chat.title.casefold() for word in wanted)]
        self._listed = [Choice(chat.id, _title(chat)) for chat in chats]
        self._listed += [Choice(hit.chat.id, _title(hit.chat), hit.message_id) for hit in hits]
        listing = self.query_one(OptionList)
        at = listing.highlighted
        listing.clear_options()
        listing.add_options([Option(self._line(chat)) for chat in chats])
        listing.add_options([Option(found_line(hit)) for hit in hits])
        listing.highlighted = min(at or 0, len(self._listed) - 1) if self._listed else None

    def _line(self, chat: Chat) -> Content:
        mark = "●" if chat.id in self._open else " "
        return Content.assemble((f"{age(chat.updated):>9}  ", "$muted"), f"{mark} ", _title(chat)[:120])


def found_line(hit: Hit) -> Content:
    """A found message on one line: its chat, and the words in their place."""
    parts: list[Content] = [Content.styled(f"{_title(hit.chat)[:24]:>24}  ", "$muted")]
    begin, end = FOUND
    for index, piece in enumerate(sanitize(hit.excerpt).split(begin)):
        found, _, rest = piece.partition(end) if index else ("", "", piece)
        parts += [Content.styled(found, "bold $accent"), Content(rest)]
    return Content("").join(parts)


def _title(chat: Chat) -> str:
    return " ".join(sanitize(chat.title).split()) or "(not sent yet)"


def age(moment: float) -> str:
    """How long ago, in a word or two."""
    seconds = max(0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"
