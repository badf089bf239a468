"""Markdown of answers: which parts of a growing text are finished, and how they look.

Parsing here never interprets HTML and never yields markup: the results are slices of the text, or `Rows`. (Textual's
own Markdown widget makes several widgets of each paragraph, item and fence: a long chat of them takes seconds to open.)

A model may write anything, and a fault in reading it must not cost a person the chat: what cannot be read as Markdown
is one piece, and is shown as it was written.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from textual.content import Content
from textual.style import Style

from pagechat.app.drawing import fallback
from pagechat.app.rows import EMPTY, Rows, Table, TableRow, TextRow

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

THINK, THOUGHT = "<think>", "</think>"
SKETCH_LIMIT = 8_000
"""Characters. A longer unfinished block is shown as plain text: parsing it ten times a second costs too much."""


_LINE_ENDS = re.compile(r"\r\n?|\n")
"""What the parser counts as lines; splitlines() knows more."""


@cache
def _parser() -> MarkdownIt:
    """The parser of all answers: GitHub flavour; HTML stays text (`vector<int>`, `<think>`)."""
    from markdown_it import MarkdownIt  # with the first answer: an empty screen comes sooner without it

    return MarkdownIt("gfm-like", {"html": False})


def split_blocks(text: str) -> list[str]:
    """`text` cut between its top-level blocks; the pieces joined are the text, and mean what they meant in it.

    A text that defines link references is one piece: the others would not know them.
    """
    pieces, references = cut(text)
    return [text] if references else pieces


@fallback(lambda text: ([text] if text else [], True))
def cut(text: str) -> tuple[list[str], bool]:
    """(the top-level blocks, whether any defines a link reference)."""
    env: dict[str, object] = {}
    tokens = _parser().parse(text, env)
    references = bool(env.get("references"))
    starts = [token.map[0] for token in tokens if token.map and token.level == 0 and token.nesting >= 0]
    if len(starts) < 2:
        return ([text] if text else []), references
    offsets = [0, *(found.end() for found in _LINE_ENDS.finditer(text))]
    cuts = [0, *(offsets[start] for start in starts[1:]), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts) if begin < end], references


def finished_blocks(text: str) -> list[str]:
    """The leading blocks of a growing text that no longer change, whatever follows.

    Text that is appended changes the last line, and through it the block it belongs to (`#` is a heading, `#x`
    goes on with the paragraph above). So the blocks are those of the whole lines, and the last of them is left out.
    """
    return cut(text[: text.rfind("\n") + 1])[0][:-1]


@fallback(lambda text: [])
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


def is_thinking(text: str) -> bool:
    """It ends inside its reasoning."""
    return text.lstrip().startswith(THINK) and THOUGHT not in text


def with_reasoning(before: str, reasoning: str, text: str) -> str:
    """What a message goes on with that holds `before`: it keeps its reasoning between marks, at its beginning."""
    thinks = is_thinking(before)
    opened = f"{THINK}\n" if reasoning and not thinks else ""
    closed = f"\n{THOUGHT}\n\n" if text and (thinks or reasoning) and THOUGHT not in before else ""
    return f"{opened}{reasoning}{closed}{text}"


def sketch(text: str) -> Rows:
    """An unfinished block, as cheaply as can be: without colours in code."""
    return Rows.of_text(text) if len(text) > SKETCH_LIMIT else draw(text, highlight_code=False)


@fallback(lambda text, **options: Rows.of_text(text))
def draw(text: str, *, highlight_code: bool = True) -> Rows:
    """Markdown as lines and tables: headings, lists, quotes, tables, code, emphasis and links."""
    painter = _Painter(highlight_code)
    for token in _parser().parse(text):
        painter.take(token)
    return Rows(painter.rows) if painter.rows else Rows.of_text(text)


@dataclass(slots=True)
class _Lead:
    """What a quote or a list item puts before its lines."""

    rest: Content
    first: Content | None = None
    """Before its very first one, instead; None once that is drawn."""
    bar: bool = False
    """It is drawn beside the text, and is no part of it."""


class _Painter:
    """Collects rows, token by token."""

    def __init__(self, highlight_code: bool) -> None:
        self.rows: list[TextRow | TableRow] = []
        self._highlight = highlight_code
        self._leads: list[_Lead] = []
        self._counters: list[int | None] = []
        self._table: list[list[Content]] | None = None
        self._heading = False

    def take(self, token: Token) -> None:
        kind = token.type
        if token.level == 0 and token.nesting >= 0 and self.rows:
            self.rows.append(TextRow(EMPTY))
        if kind.endswith("list_open"):
            self._counters.append(_start(token) if kind == "ordered_list_open" else None)
        elif kind.endswith("list_close"):
            self._counters.pop()
        elif kind == "list_item_open":
            self._begin_item()
        elif kind == "list_item_close":
            if self._leads[-1].first is not None:  # an item may hold nothing
                self._line(EMPTY)
            self._leads.pop()
        elif kind == "blockquote_open":
            self._leads.append(_Lead(Content.styled("▎ ", "$accent"), bar=True))
        elif kind == "blockquote_close":
            self._leads.pop()
        elif kind in ("fence", "code_block"):
            self._code(token)
        elif kind == "table_open":
            self._table = []
        elif kind == "tr_open" and self._table is not None:
            self._table.append([])
        elif kind == "table_close":
            self._end_table()
        elif kind == "heading_open":
            self._heading = True
        elif kind == "inline":
            self._text(_inline(token))
        elif kind == "hr":
            self._line(Content.styled("─" * 24, "$frame"))

    def _begin_item(self) -> None:
        number = self._counters[-1]
        marker = "• " if number is None else f"{number}. "
        if number is not None:
            self._counters[-1] = number + 1
        self._leads.append(_Lead(Content(" " * len(marker)), Content.styled(marker, "$accent")))

    def _text(self, content: Content) -> None:
        if self._table is not None:
            self._table[-1].append(Content(" ").join(content.split("\n", allow_blank=True)))
            return
        for part in content.split("\n", allow_blank=True):
            self._line(part.stylize("bold $primary") if self._heading else part)
        self._heading = False

    def _code(self, token: Token) -> None:
        code = token.content.rstrip("\n").expandtabs(4)
        language = token.info.split()[0] if token.info.split() else ""
        content = _highlighted(code, language) if self._highlight and language else Content(code)
        bar = Content.styled("▏ ", "$frame")
        for line in content.split("\n", allow_blank=True):
            self._line(line, bar, verbatim=True)

    def _end_table(self) -> None:
        rows, self._table = self._table or [], None
        if rows:
            leads = [(first + mark, rest) for first, mark, rest in (self._lead() for _ in rows)]
            self.rows += Table(rows).table_rows(leads)

    def _line(self, content: Content, bar: Content = EMPTY, *, verbatim: bool = False) -> None:
        first, mark, rest = self._lead()
        if bar:
            first, mark = first + mark + bar, EMPTY
        self.rows.append(TextRow(content, first, rest + bar, verbatim, mark))

    def _lead(self) -> tuple[Content, Content, Content]:
        """(what stands before the next line, the marks of list items behind it, what stands before the lines it is
        wrapped into)."""
        first, mark, rest = EMPTY, EMPTY, EMPTY
        begins = any(lead.first is not None for lead in self._leads)
        for lead in self._leads:
            own = lead.rest if lead.first is None else lead.first
            if lead.bar or not begins:
                first, mark = first + mark + own, EMPTY
            else:
                mark += own
            rest += lead.rest
            lead.first = None
        return first, mark, rest


def _start(token: Token) -> int:
    """The first number of an ordered list."""
    start = token.attrGet("start")
    return 1 if start is None else int(start)


def _highlighted(code: str, language: str) -> Content:
    from textual.highlight import highlight  # brings pygments, with the first code

    return highlight(code, language=language)


def _inline(token: Token) -> Content:
    parts: list[Content] = []
    styles: list[str] = []
    links: list[str] = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak"):
            parts.append(Content(" " if child.type == "softbreak" else "\n"))
        elif child.type == "link_open":
            links.append(str(child.attrGet("href") or ""))
            styles.append("underline $accent")
        elif child.nesting == 1:
            styles.append({"strong_open": "bold", "em_open": "italic", "s_open": "strike"}.get(child.type, ""))
        elif child.nesting == -1:
            styles.pop()
            if child.type == "link_close":
                links.pop()
        else:
            style = " ".join([*filter(None, styles), *(["$text-warning"] if child.type == "code_inline" else [])])
            part = Content.styled(child.content, style) if style else Content(child.content)
            parts.append(part.stylize(Style.from_meta({"@click": f"link({links[-1]!r})"})) if links else part)
    return Content("").join(parts)
