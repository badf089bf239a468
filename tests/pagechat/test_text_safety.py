"""Nothing a terminal could obey survives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagechat.text_safety import sanitize


@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_no_control_survives_whatever_the_text(text: str) -> None:
    shown = sanitize(text)
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert not set(shown) & set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")
    shown.encode("utf-8")


def test_controls_become_visible_marks() -> None:
    assert sanitize("\x1b[2J\x07\x7f\x9b\u202e") == "␛[2J␇␡‹9b›‹u+202e›"


def test_ordinary_text_stays_as_it_is() -> None:
    text = "tab\tline\nß 日本 👍 vector<int> [/INST]"
    assert sanitize(text) == text


def test_windows_line_ends_become_newlines() -> None:
    assert sanitize("a\r\nb") == "a\nb"
