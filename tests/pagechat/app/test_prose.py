"""Cutting a growing answer into finished blocks, and the picture of the unfinished one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

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

FRAGMENTS = st.sampled_from(
    ["# head\n", "para ", "\n", "\n\n", "- item\n", "  - inner\n", "1. one\n", "```\n", "code\n", "> quote\n",
     "|a|b|\n", "|-|-|\n", "---\n", "<b>\n", "    indented\n", "\t", "**bold** ", "[/INST]", "\u2028", "\x0b", "\r\n"]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=25).map("".join)


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
    assert sketch("vector<int> [/INST] [bold]x[/] <think>hm").plain == "vector<int> [/INST] [bold]x[/] <think>hm"


def test_a_sketch_of_a_list_and_an_open_fence_reads_like_one() -> None:
    assert sketch("1. one\n2. **two**\n   - inner").plain == "1. one\n2. two\n   • inner"
    assert sketch("```py\nx = [1]\n").plain == "▏ x = [1]"


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
    assert draw(MARKDOWN).plain.splitlines() == [
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
    content = draw("[good](https://example.org/a'b) [bad](javascript:alert(1)) [@click=app.quit]x[/]")
    actions = [span.style.meta for span in content.spans if not isinstance(span.style, str)]
    assert actions == [{"@click": 'link("https://example.org/a\'b")'}]


@given(TEXTS)
def test_anything_can_be_drawn(text: str) -> None:
    draw(text)
    code_blocks(text)


def test_reasoning_is_what_stands_in_think_at_the_very_beginning() -> None:
    assert split_reasoning("<think>\na\n</think>\n\nb") == ("a", "b")
    assert split_reasoning("<think>a") == ("a", "")
    assert split_reasoning("b <think>a</think>") == (None, "b <think>a</think>")
