"""A text that grew piece by piece looks like one that was there at once, and knows its places."""

from __future__ import annotations

from textual.geometry import Offset
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions

from pagechat.app.prose import draw
from pagechat.app.rows import Rows
from pagechat.app.widgets.passage import Passage

PIECES = [
    "# A title",
    "One *long* paragraph that is wrapped into several lines, and goes on and on.",
    "- one\n- two\n- 日本語の項目 three",
    "```\ncode\n\nmore code\n```",
]
WIDTH = 24


def style_of(style: str | Style) -> Style:
    """In place of a theme's."""
    return style if isinstance(style, Style) else Style.parse("bold")


def render(visual: Passage, selection: Selection | None = None) -> list[Strip]:
    options = RenderOptions(style_of, {}, selection, Style.parse("reverse"))
    return visual.render_strips(WIDTH, None, Style(), options)


def places(strips: list[Strip]) -> list[list[tuple[str, object]]]:
    return [[(segment.text, segment.style.meta.get("offset")) for segment in strip] for strip in strips]  # type: ignore[union-attr]


def drawn() -> list[Rows]:
    return [draw(piece, highlight_code=False) for piece in PIECES]


def test_growing_gives_the_lines_and_places_of_the_whole() -> None:
    passage = Passage()
    for piece in drawn():
        passage.extend([piece])
        lines = render(passage)
        assert passage.get_height({}, WIDTH) == len(lines)
    at_once = render(Passage(drawn()))
    assert [line.text for line in lines] == [line.text for line in at_once]
    assert places(lines) == places(at_once)
    assert str(passage) == "\n\n".join(piece.plain for piece in drawn())


def test_every_place_is_where_the_text_says() -> None:
    """So that what is selected with the mouse is what is copied: bars and spaces before a line are no part of it."""
    passage = Passage(drawn())
    text = str(passage).split("\n")
    found: dict[int, str] = {}
    for line in render(passage):
        for segment in line:
            x, y = segment.style.meta["offset"]  # type: ignore[union-attr]
            if text[y][x : x + len(segment.text)] == segment.text:
                found[y] = found.get(y, "") + segment.text
    assert {y: line.replace(" ", "") for y, line in found.items() if line.strip()} == {
        y: line.replace(" ", "") for y, line in enumerate(text) if line
    }


def test_what_stands_is_not_rendered_again() -> None:
    passage = Passage(drawn()[:2])
    before = render(passage)
    passage.extend(drawn()[2:])
    after = render(passage)
    assert all(one is other for one, other in zip(before, after, strict=False))
    passage.forget_lines()
    assert render(passage)[0] is not after[0]


def test_a_selection_shows() -> None:
    passage = Passage(drawn())
    chosen = Selection(Offset(0, 2), Offset(3, 2))
    line = render(passage, chosen)[2]
    assert line._segments[0].text == "One"
    style = line._segments[0].style
    assert style is not None
    assert style.reverse
