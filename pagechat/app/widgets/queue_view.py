"""The prompts that wait for their turn, above the input; and what the input stands for while a message is edited."""

from __future__ import annotations

from textual.content import Content

from pagechat.app.conversation import Conversation
from pagechat.app.titles import short
from pagechat.app.widgets.line import Line
from pagechat.text_safety import sanitize

MOST = 3


class QueueView(Line):
    """Gone while nothing waits."""

    def __init__(self) -> None:
        super().__init__("queue")

    def sync(self, conversation: Conversation, editing: bool, width: int) -> None:
        lines: list[Content] = []
        for number, text in enumerate(conversation.queue[:MOST], start=1):
            shown = short(" ".join(sanitize(text[: 4 * width]).split()), max(8, width - 14))
            lines.append(Content.assemble((f"queued {number}  ", "$accent"), shown))
        if len(conversation.queue) > MOST:
            lines.append(Content.styled(f"and {len(conversation.queue) - MOST:,} more", "$muted"))
        if conversation.queue:
            picking = "Pick an answer, and it is sent. " if conversation.choosing else ""
            held = _why_held(conversation)
            lines.append(Content.styled(f"{picking}{held}up takes the last one back", "$muted"))
        if editing:
            lines.append(
                Content.styled("editing an earlier message: enter goes on from there, esc does not", "$accent")
            )
        self.display = bool(lines)
        self.show(Content("\n").join(lines))


def _why_held(conversation: Conversation) -> str:
    """Why the queue stands still, and what makes it go on."""
    if not conversation.held:
        return ""
    why = "The last answer failed" if conversation.state == "error" else "Not sent yet when pagechat was left"
    return f"{why}: enter sends the next one. "
