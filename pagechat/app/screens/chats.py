"""All chats in the history, to open or delete one."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from pagechat.app.screens.dialogs import Confirm
from pagechat.store import Chat
from pagechat.text_safety import sanitize


class ChatsScreen(ModalScreen[tuple[str, str] | None]):
    """Answers ("open" or "delete", chat id), or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back"),
        Binding("down", "step(1)", show=False),
        Binding("up", "step(-1)", show=False),
        Binding("ctrl+d,delete", "delete", "Delete", priority=True),
    ]

    def __init__(self, chats: list[Chat], open_now: set[str]) -> None:
        super().__init__()
        self._chats, self._open = chats, open_now
        self._listed: list[Chat] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog list"):
            yield Static(Content.styled(f"Chats ({len(self._chats):,})", "bold"), markup=False)
            yield Input(placeholder="filter by title", compact=True)
            yield OptionList(markup=False, compact=True)
            yield Static(
                Content.styled("enter opens · ctrl+d deletes · esc goes back", "$muted"),
                classes="detail",
                markup=False,
            )

    def on_mount(self) -> None:
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def on_input_submitted(self) -> None:
        self._open_highlighted()

    def on_option_list_option_selected(self) -> None:
        self._open_highlighted()

    def action_step(self, step: int) -> None:
        listing = self.query_one(OptionList)
        if self._listed:
            listing.highlighted = ((listing.highlighted or 0) + step) % len(self._listed)

    def action_delete(self) -> None:
        chat = self._highlighted()
        if chat is not None:
            question = Confirm("Delete this chat for good?", chat.title, "Delete", "Keep")

            def answered(yes: bool | None) -> None:
                if yes:
                    self.dismiss(("delete", chat.id))

            self.app.push_screen(question, answered)

    def _highlighted(self) -> Chat | None:
        index = self.query_one(OptionList).highlighted
        return self._listed[index] if index is not None and index < len(self._listed) else None

    def _open_highlighted(self) -> None:
        chat = self._highlighted()
        if chat is not None:
            self.dismiss(("open", chat.id))

    def _list(self, words: str) -> None:
        wanted = words.casefold().split()
        self._listed = [chat for chat in self._chats if all(word in chat.title.casefold() for word in wanted)]
        listing = self.query_one(OptionList)
        listing.clear_options()
        listing.add_options([Option(self._line(chat)) for chat in self._listed])
        listing.highlighted = 0 if self._listed else None

    def _line(self, chat: Chat) -> Content:
        title = " ".join(sanitize(chat.title).split()) or "(no title)"
        mark = "●" if chat.id in self._open else " "
        return Content.assemble((f"{_age(chat.updated):>9}  ", "$muted"), f"{mark} ", title[:120])


def _age(moment: float) -> str:
    seconds = max(0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"
