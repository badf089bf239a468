"""Cutting a growing answer into finished blocks, and the picture of the unfinished one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pagechat.app import prose
from pagechat.app.drawing import problems
from pagechat.app.prose import (
    SKETCH_LIMIT,
    _parser,
    code_blocks,
    draw,
    finished_blocks,
    sketch,
    split_blocks,
    split_reasoning,
)
from pagechat.app.rows import Rows, TextRow


@pytest.fixture(autouse=True)
def _no_problems_before() -> Iterator[None]:
    problems.clear()
    yield
    problems.clear()


FRAGMENTS = st.sampled_from(
    ["# head\n", "para ", "\n", "\n\n", "- item\n", "  - inner\n", "1. one\n", "```\n", "code\n", "> quote\n",
     "|a|b|\n", "|-|-|\n", "---\n", "<b>\n", "    indented\n", "\t", "**bold** ", "[/INST]", "\u2028", "\x0b", "\r\n"]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=25).map("".join)


def seen(rows: Rows, width: int = 80) -> str:
    """What a person sees."""
    return rows.text_at(width)


@given(TEXTS)
def test_the_pieces_are_the_text(text: str) -> None:
    assert "".join(split_blocks(text)) == text


@given(TEXTS)
@settings(max_examples=100)
def test_pieces_mean_what_they_meant_in_the_whole(text: str) -> None:
    parser = _parser()
    assert "".join(parser.render(piece) for piece in split_blocks(text)) == parser.render(text)


def test_a_text_with_link_references_is_cut_only_while_it_grows() -> None:
    text = "[page][x] tables\n\n[x]: https://example.org\n\nmore\n"
    assert split_blocks(text) == [text]
    assert finished_blocks(text) == ["[page][x] tables\n\n[x]: https://example.org\n\n"]


@given(TEXTS, TEXTS)
@settings(max_examples=100)
def test_finished_blocks_never_change_when_the_text_grows(text: str, more: str) -> None:
    finished = finished_blocks(text)
    # a piece ends with the blank lines behind it, of which more may come
    grown = [piece.rstrip() for piece in split_blocks(text + more)]
    assert grown[: len(finished)] == [piece.rstrip() for piece in finished]


@given(TEXTS)
def test_a_sketch_can_be_made_of_anything(text: str) -> None:
    sketch(text)


def test_a_line_that_may_still_become_something_else_finishes_nothing() -> None:
    assert finished_blocks("para\n#") == []
    assert finished_blocks("para\n# head\n") == ["para\n"]


def test_a_sketch_keeps_what_looks_like_markup_or_html() -> None:
    assert seen(sketch("vector<int> [/INST] [bold]x[/] <think>hm")) == "vector<int> [/INST] [bold]x[/] <think>hm"


def test_a_sketch_of_a_list_and_an_open_fence_reads_like_one() -> None:
    assert seen(sketch("1. one\n2. **two**\n   - inner")) == "1. one\n2. two\n   • inner"
    assert seen(sketch("```py\nx = [1]\n")) == "▏ x = [1]"


def test_a_very_long_unfinished_block_is_shown_as_it_is() -> None:
    text = "- **item**\n" * SKETCH_LIMIT
    assert sketch(text).plain == text


MARKDOWN = """# Head

A *word*, `code` and a [link](https://example.org/x).

> quoted
> - item

| name | n |
|------|---|
| a    | 1 |

```python
x = {"a": [1]}
```
"""


def test_markdown_is_drawn_in_lines_that_look_like_it() -> None:
    assert seen(draw(MARKDOWN)).splitlines() == [
        "Head",
        "",
        "A word, code and a link.",
        "",
        "▎ quoted",
        "▎ • item",
        "",
        "name │ n",
        "─────┼──",
        "a    │ 1",
        "",
        '▏ x = {"a": [1]}',
    ]


def test_only_links_that_go_somewhere_harmless_can_be_clicked() -> None:
    (row,) = draw("[good](https://example.org/a'b) [bad](javascript:alert(1)) [@click=app.quit]x[/]").rows
    assert isinstance(row, TextRow)
    actions = [span.style.meta for span in row.content.spans if not isinstance(span.style, str)]
    assert actions == [{"@click": 'link("https://example.org/a\'b")'}]


@given(TEXTS)
def test_anything_can_be_drawn(text: str) -> None:
    draw(text)
    code_blocks(text)
    assert not problems


BITS = [
    "-", "- ", "* ", "+ ", "1. ", "1.", "7) ", "0. ", "999999999. ", "\n", "\n", "\n\n", "  ", "    ", "\t", "> ",
    ">", "-\n\n",
    "| a | b |", "|---|:-:|", "| 1 |", "|", "|\n|-|\n", "```", "```py\n", "~~~", "`x`", "**", "b", "*", "_", "~~",
    "[a](b)", "[a]: http://x 't'\n", "[a]", "![i](u)", "<b>", "</b>", "<!-- ", "<div>\n", "# ", "###### ", "---",
    "===",
    "Hello", "word ", "使用", "👩‍🚀", "\\", "&amp;", "&#0;", "&#xd800;", "\x00", "\u2028", "\r\n", "\r",
    "http://a.b/c", "www.x.de",
    "a@b.de", "- [ ] ", "- [x] ", "<think>", "</think>", "[^1]", "[^1]: f\n", "$x$", "\u202e", "\udc80",
    "[a]('x')", "\f", "\v",
    "[x](<a'b\"c>)", "w" * 300, "long line " * 40, "> " * 30, "- " * 30, "[" * 50, "`" * 30, "*" * 40, "סלאם",
    "สวัสดี", "\U000e0041",
]  # fmt: skip


def test_thousands_of_growing_texts_are_drawn_at_every_width() -> None:
    """What a model may write, as it arrives: nothing of it has to fall back on anything."""
    rng, at = random.Random(7), 0
    for _ in range(700):
        text = "".join(rng.choice(BITS) for _ in range(rng.randint(1, 14)))
        for end in sorted({*rng.sample(range(1, len(text) + 1), min(4, len(text))), len(text)}):
            part = text[:end]
            done = finished_blocks(part)
            width = (1, 2, 3, 7, 20, 60, 120)[at % 7]
            for rows in (*(draw(block, highlight_code=False) for block in done), sketch(part[sum(map(len, done)) :])):
                lines = rows.text_at(width).split("\n")
                # Characters of two cells cannot stand in one.
                assert all(cell_len(line) <= max(2, width) for line in lines), (part, width)
            code_blocks(part)
            assert "".join(split_blocks(part)) == part
            assert not problems, f"{part!r}: {problems[-1]}"
            at += 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-\n\nHello", "•\n\nHello"),
        ("1.\n\nText", "1.\n\nText"),
        ("-\n\nHello [a]\n\n[a]: http://x.example\n", "•\n\nHello a"),
        ("* a\n\n  -\n\nx", "• a\n  •\n\nx"),
        ("-\n-\n- a", "•\n•\n• a"),
        ("> -\n\nq", "▎ •\n\nq"),
        ("-\n\n    code\n", "•\n\n▏ code"),
        ("- - a\n- b", "• • a\n• b"),
        ("0. zero\n1. one", "0. zero\n1. one"),
    ],
)
def test_an_item_may_be_empty(text: str, shown: str) -> None:
    assert "\n\n".join(seen(draw(block)) for block in split_blocks(text)).rstrip() == shown
    assert not problems


def test_what_cannot_be_read_is_shown_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise IndexError("a fault in the parser")

    monkeypatch.setattr(prose, "_parser", broken)
    assert seen(draw("- **a**\n\nb")) == "- **a**\n\nb"
    assert split_blocks("- **a**\n\nb") == ["- **a**\n\nb"]
    assert finished_blocks("- **a**\n\nb\n") == []
    assert code_blocks("```\nx\n```") == []
    assert problems


# -- width -------------------------------------------------------------------------------------


def test_what_stands_before_a_line_stands_before_all_it_is_wrapped_into() -> None:
    assert seen(draw("> - a quoted item of several words"), 16) == "▎ • a quoted\n▎   item of\n▎   several\n▎   words"
    assert seen(draw("10. ten words in a list item"), 14) == "10. ten words\n    in a list\n    item"
    assert seen(draw("```\nabcdefghijkl\n  indented\n```"), 10) == "▏ abcdefgh\n▏ ijkl\n▏   indent\n▏ ed"


def test_what_is_copied_is_the_text_without_bars() -> None:
    text = "> quoted\n\n- one\n  - two\n\n```\n  x = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert draw(text).plain == "quoted\n\n• one\n  • two\n\n  x = 1\n\na\tb\n1\t2"


def test_cells_are_wrapped_inside_their_table() -> None:
    table = draw("| name | text |\n|---|---|\n| one | several words in one cell |\n| 二 | 使用分页内存管理 |\n")
    assert seen(table, 22).splitlines() == [
        "name │ text",
        "─────┼────────────────",
        "one  │ several words",
        "     │ in one cell",
        "二   │ 使用分页内存管",
        "     │ 理",
    ]
    assert seen(table).splitlines()[2] == "one  │ several words in one cell"


def test_a_table_that_is_too_wide_for_its_columns_is_a_list() -> None:
    table = draw("| a | b | c |\n|---|---|---|\n| 1111111 | 22222222 | 33333333 |\n| x |\n")
    assert seen(table, 18).splitlines() == ["a: 1111111", "b: 22222222", "c: 33333333", "", "a: x", "b:", "c:"]


def test_a_selection_knows_its_place_in_a_wrapped_table() -> None:
    rows = draw("| a | b |\n|---|---|\n| one two three | four five six |\n")
    for width in (80, 20, 10):
        for index, line in rows.lines(width):
            for part in line:
                if part.at is not None:
                    whole = rows.plain.split("\n")[index]
                    assert whole[part.at : part.at + len(part.content.plain)] == part.content.plain


def test_reasoning_is_what_stands_in_think_at_the_very_beginning() -> None:
    assert split_reasoning("<think>\na\n</think>\n\nb") == ("a", "b")
    assert split_reasoning("<think>a") == ("a", "")
    assert split_reasoning("b <think>a</think>") == (None, "b <think>a</think>")
