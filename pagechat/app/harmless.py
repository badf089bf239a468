"""Nothing that a terminal would obey leaves the app as text: the last thing before the screen.

What is shown of an answer has marks in place of such characters (`pagechat.text_safety`). An input holds what was
pasted or is being edited as it is, and Textual draws it as it is: there they take no cell, and are left out.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from pagechat.text_safety import without_controls


class Harmless(LineFilter):
    """Leaves out what has no width, so that a line stays as long as it was laid out."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            segment if segment.control else Segment(without_controls(segment.text), segment.style)
            for segment in segments
        ]
