"""Nothing a terminal could obey survives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pagechat.text_safety import sanitize, without_controls


@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_no_control_survives_whatever_the_text(text: str) -> None:
    shown = sanitize(text)
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode("utf-8")


def test_controls_become_visible_marks() -> None:
    assert sanitize("\x1b[2J\x07\x7f\x9b\u202e") == "␛[2J␇␡‹9b›‹u+202e›"


def test_what_hides_is_shown_as_what_it_is() -> None:
    tags = "".join(chr(0xE0000 + ord(letter)) for letter in "I am")
    assert sanitize(f"Hi{tags}.") == "Hi‹tag I›‹tag space›‹tag a›‹tag m›."
    assert sanitize("a\u2062b a\u200bb a\u2060b \ufeffc\u00ad\u3164") == (
        "a‹u+2062›b a‹u+200b›b a‹u+2060›b ‹u+feff›c‹u+00ad›‹u+3164›"
    )
    assert sanitize("x\ufe0f\ufe01\U000e0101y\U000e0102") == "x\ufe0f‹u+fe01›‹u+e0101›y‹u+e0102›"


@pytest.mark.parametrize(
    "text",
    [
        "سلام\u200f hello \u200e(x)\u200f \u061cمی\u200cخواهم",
        "שלום\u200f!",
        "क्\u200dष",
        "👩\u200d🚀 🏳\ufe0f\u200d🌈 ☁\ufe0e",
        "ខ្ញុំ\u200bចូល สวัส\u200bดี",
        "葛\U000e0100",
    ],
)
def test_what_belongs_to_a_language_stays(text: str) -> None:
    assert sanitize(text) == text
    shown = ""
    for at, letter in enumerate(text):  # also where it comes letter by letter
        shown += sanitize(letter, text[:at])
    assert shown == text


def test_ordinary_text_stays_as_it_is() -> None:
    text = "tab\tline\nß 日本 👍 vector<int> [/INST]"
    assert sanitize(text) == text


def test_windows_line_ends_become_newlines() -> None:
    assert sanitize("a\r\nb") == "a\nb"


@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_what_is_drawn_as_it_is_keeps_its_width_without_controls(text: str) -> None:
    shown = without_controls(text)
    assert shown == without_controls(sanitize(shown)) == sanitize(shown)  # there is nothing left to mark
    assert "\n" not in shown
    assert "\t" not in shown
    assert cell_len(shown) == cell_len(text)
