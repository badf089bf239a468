"""Terminals without Unicode: our glyphs in ASCII, translated at one place, as the last thing before the screen."""

from __future__ import annotations

import os
import sys

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_ASCII = {
    **dict(zip("▁▂▃▄▅▆▇█▀", "1234567#^", strict=True)),
    **dict(zip("░▒▓", "-=%", strict=True)),
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼╞╡", "+"),
    **dict.fromkeys("─━╌┄", "-"),
    **dict.fromkeys("│┃▌▐▏▎▊▍", "|"),
    **dict(zip("·●◌◆•", ".*o+*", strict=True)),
    **dict(zip("…→↑↓↵▸▾▶‖✓×", "~>^v/>v>=vx", strict=True)),
    **dict(zip("‹›⏎", "<><", strict=True)),
}
_TABLE = str.maketrans(_ASCII)


def wanted() -> bool:
    """$PAGECHAT_ASCII is set, or the terminal's encoding is not UTF-8."""
    if "PAGECHAT_ASCII" in os.environ:
        return os.environ["PAGECHAT_ASCII"] not in ("", "0")
    return "utf" not in (getattr(sys.__stdout__, "encoding", None) or "utf-8").lower()


class AsciiGlyphs(LineFilter):
    """Replaces the glyphs that are ours; letters of any language stay as they are."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_TABLE), segment.style, segment.control)
            for segment in segments
        ]
