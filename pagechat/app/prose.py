"""Markdown of answers: which parts of a growing text are finished, and a cheap picture of the part that is not.

Parsing here never interprets HTML and never yields markup: the results are slices of the text, or `Content`.
"""

from __future__ import annotations

import itertools
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Content

THINK, THOUGHT = "<think>", "</think>"
SKETCH_LIMIT = 8_000
"""Characters. A longer unfinished block is shown as plain text: parsing it ten times a second costs too much."""


def make_parser() -> MarkdownIt:
    """The parser of all answers: GitHub flavour; HTML stays text (`vector<int>`, `<think>`)."""
    return MarkdownIt("gfm-like", {"html": False})


@cache
def _parser() -> MarkdownIt:
    return make_parser()


def split_blocks(text: str) -> list[str]:
    """`text` cut between its top-level blocks; the pieces joined are the text.

    Pieces mean what they meant in the whole, reference links apart (see `has_references`).
    """
    starts = [token.map[0] for token in _parser().parse(text) if token.map and token.level == 0 and token.nesting >= 0]
    if len(starts) < 2:
        return [text] if text else []
    lines = text.split("\n")  # what the parser counts as lines; splitlines() knows more
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    cuts = [0, *(offsets[start] for start in starts[1:]), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts) if begin < end]


def finished_blocks(text: str) -> list[str]:
    """The leading blocks of a growing text that no longer change, whatever follows.

    Text that is appended changes the last line, and through it the block it belongs to (`#` is a heading, `#x`
    goes on with the paragraph above). So the blocks are those of the whole lines, and the last of them is left out.
    """
    return split_blocks(text[: text.rfind("\n") + 1])[:-1]


def code_blocks(text: str) -> list[str]:
    """The content of all fenced and indented code, in order."""
    return [token.content for token in _parser().parse(text) if token.type in ("fence", "code_block")]


def split_reasoning(text: str) -> tuple[str | None, str]:
    """(what a model thought before its answer, the answer). Reasoning stands in `<think>` at the very beginning;
    anywhere else these are letters like any other. None: there is none; an answer that is still thinking is "".
    """
    if not text.lstrip().startswith(THINK):
        return None, text
    thought, _, answer = text.lstrip().removeprefix(THINK).partition(THOUGHT)
    return thought.strip("\n"), answer.lstrip("\n")


def has_references(text: str) -> bool:
    """True when the text defines link references, which pieces cannot see from each other."""
    env: dict[str, object] = {}
    _parser().parse(text, env)
    return bool(env.get("references"))


def sketch(text: str) -> Content:
    """An unfinished block as it will roughly look: lists, fences and emphasis, in one piece of content."""
    if len(text) > SKETCH_LIMIT:
        return Content(text)
    lines: list[Content] = []
    markers: list[str] = []
    counters: list[int | None] = []
    row: list[Content] | None = None
    for token in _parser().parse(text):
        kind = token.type
        if kind in ("bullet_list_open", "ordered_list_open"):
            counters.append(int(token.attrGet("start") or 1) if kind == "ordered_list_open" else None)
        elif kind in ("bullet_list_close", "ordered_list_close"):
            counters.pop()
        elif kind == "list_item_open":
            number = counters[-1]
            markers.append("• " if number is None else f"{number}. ")
            if number is not None:
                counters[-1] = number + 1
        elif kind == "list_item_close" and markers:
            markers.pop()
        elif kind in ("fence", "code_block"):
            indent = "  " * len(counters)
            for line in token.content.rstrip("\n").split("\n"):
                lines.append(Content.assemble(indent + "  ", (line, "$text-secondary")))
        elif kind == "tr_open":
            row = []
        elif kind == "inline" and row is not None:
            row.append(_inline(token))
        elif kind == "tr_close" and row is not None:
            lines.append(Content(" │ ").join(row))
            row = None
        elif kind == "inline":
            indent = "  " * max(0, len(counters) - 1)
            for number, part in enumerate(_inline(token).split("\n", allow_blank=True)):
                marker = markers[-1] if markers else ""
                lines.append(Content.assemble(indent, marker if number == 0 else " " * len(marker), part))
            if markers:
                markers[-1] = " " * len(markers[-1])
        elif kind == "heading_close" and lines:
            lines[-1] = lines[-1].stylize("bold")
        elif kind == "hr":
            lines.append(Content("───"))
    return Content("\n").join(lines) if lines else Content(text)


def _inline(token: Token) -> Content:
    parts: list[Content] = []
    styles: list[str] = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak"):
            parts.append(Content(" " if child.type == "softbreak" else "\n"))
        elif child.nesting == 1:
            styles.append({"strong_open": "bold", "em_open": "italic", "s_open": "strike"}.get(child.type, "underline"))
        elif child.nesting == -1:
            styles.pop()
        else:
            style = " ".join([*styles, *(["$text-warning"] if child.type == "code_inline" else [])])
            parts.append(Content.styled(child.content, style) if style else Content(child.content))
    return Content("").join(parts)
