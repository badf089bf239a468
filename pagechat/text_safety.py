"""Text from outside made safe to show in a terminal: `sanitize`, used wherever such text reaches a screen.

A model, a user, a file or another client may send any character. Terminals obey some of them (ESC, C1 control bytes),
reorder by others (bidi controls) and cannot encode some (lone surrogates); and some are not seen at all, though a model
reads them like any other (tag characters, invisible operators). They become visible marks. What belongs to the writing
of a language stays: the joiners of Persian, Hindi and emoji, the marks of direction of Hebrew and Arabic, which move
nothing but the signs beside them, the breaks of Thai and Khmer. Stored and transmitted text stays as it is: this is for
display only.
"""

from __future__ import annotations

import re


def _named(*codes: int) -> dict[int, str]:
    return {code: f"‹u+{code:04x}›" for code in codes}


_MARKS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},  # C0 -> control pictures
    0x7F: "\u2421",  # DEL
    **{code: f"‹{code:02x}›" for code in range(0x80, 0xA0)},  # C1
    **_named(*range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # bidi embeddings, overrides and isolates
    **_named(0x00AD, 0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x2060, 0x2066)),
    **_named(*range(0x206A, 0x2070), 0x3164, 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFFC), *range(0x1D173, 0x1D17B)),
    **_named(*range(0xE0000, 0xE0100), *range(0xE01F0, 0xE1000)),
    **{0xE0000 + code: f"‹tag {chr(code)}›" for code in range(0x21, 0x7F)},  # each stands for an ASCII character
    0xE0020: "‹tag space›",
    0x2028: "\n",  # line and paragraph separators
    0x2029: "\n",
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # lone surrogates cannot be encoded
}

_NOTHING = {
    **dict.fromkeys((*range(0x20), *_MARKS), ""),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    0x00AD: "-",  # these take cells
    0x115F: "  ",
}

_BREAK = re.compile("(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")
"""A zero-width space outside the languages that break their lines by it."""
_SELECTOR = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SELECTORS = re.compile(
    f"(?<=[{_SELECTOR}])[{_SELECTOR}]|(?<![\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]"
)
"""A variation selector where none belongs: behind another one, or, of the rare ones, behind no ideograph."""


def sanitize(text: str, before: str = "") -> str:
    """`text` with every control that a terminal could act on, and everything that hides, replaced by a visible mark.

    Newline and tab stay; CR LF becomes a newline. Works on any piece of a stream: no sequence is recognised as a
    whole, so one split over two pieces is harmless too. `before`: what stands before the piece, where it is known; some
    characters belong to the letter before them.
    """
    if not text.isascii():
        known = before[-1:]
        text = known + text
        for wrong in (_BREAK, _SELECTORS):
            parts, end = [], len(known)
            for found in wrong.finditer(text, end):
                parts += [text[end : found.start()], f"‹u+{ord(found.group()):04x}›"]
                end = found.end()
            text = known + "".join([*parts, text[end:]])
        text = text[len(known) :]
    return text.replace("\r\n", "\n").translate(_MARKS)


def one_line(text: str) -> str:
    """On one line, and safe for a terminal."""
    return " ".join(sanitize(text).split())


def without_controls(text: str) -> str:
    """One line without any of these controls, newlines and tabs too: what remains is as wide as before."""
    text = text.translate(_NOTHING)
    return text if text.isascii() else _SELECTORS.sub("", _BREAK.sub("", text))
