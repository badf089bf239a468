"""Text from outside made safe to show in a terminal: `sanitize`, used wherever such text reaches a screen.

A model, a user, a file or another client may send any character. Terminals obey some of them (ESC, C1
control bytes), reorder by others (bidi controls) and cannot encode some (lone surrogates). They become
visible marks. Stored and transmitted text stays as it is: this is for display only.
"""

from __future__ import annotations

_MARKS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},  # C0 -> control pictures
    0x7F: "\u2421",  # DEL
    **{code: f"‹{code:02x}›" for code in range(0x80, 0xA0)},  # C1
    **{code: f"‹u+{code:04x}›" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    0x2028: "\n",  # line and paragraph separators
    0x2029: "\n",
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # lone surrogates cannot be encoded
}

_NOTHING = {**dict.fromkeys((*range(0x20), *_MARKS), ""), **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}


def sanitize(text: str) -> str:
    """`text` with every control that a terminal could act on replaced by a visible mark.

    Newline and tab stay; CR LF becomes a newline. Works on any piece of a stream: no sequence is
    recognised as a whole, only its single characters, so a sequence split over two pieces is harmless too.
    """
    return text.replace("\r\n", "\n").translate(_MARKS)


def one_line(text: str) -> str:
    """On one line, and safe for a terminal."""
    return " ".join(sanitize(text).split())


def without_controls(text: str) -> str:
    """One line without any of these controls, newlines and tabs too: what remains is as wide as before."""
    return text.translate(_NOTHING)
