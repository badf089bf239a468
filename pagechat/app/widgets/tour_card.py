"""What the guided tour says now: the step, what to look at, and whether it has been seen."""

from __future__ import annotations

from textual.content import Content
from textual.message import Message

from pagechat.app.widgets.line import Line


class TourCard(Line):
    """Posts `Next` when clicked; F8 does the same."""

    class Next(Message):
        pass

    def tell(self, head: str, text: str, state: Content) -> None:
        self.show(Content.assemble((head, "bold $accent"), "  ", text, "\n", state))

    def on_click(self) -> None:
        self.post_message(self.Next())
