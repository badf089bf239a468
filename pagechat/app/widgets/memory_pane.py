"""The memory pane: totals, the block map, the block under the cursor, the table of the chat, the legend."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from engine.protocol import ModelInfo, PoolStatus
from pagechat.app.pool_view import PoolView, compare, table_line
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.line import Line
from pagechat.app.widgets.tab_bar import owner_color

NameOf = Callable[[str], str]
"""What to call a session: the title of its tab, or its own name; safe to display."""


class MemoryPane(Vertical):
    """Shows a `PoolView`. `sync_map` is cheap and may run ten times a second; `sync_text` twice."""

    def __init__(self, view: PoolView, name_of: NameOf, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view
        self._name_of = name_of
        self._seen: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Line("totals")
        yield BlockMap(self.view, id="map")
        for name in ("block", "table", "contiguous", "paged", "legend"):
            yield Line(name)

    def on_block_map_selected(self) -> None:
        self._show_block()

    def sync_map(self) -> None:
        if self.display and self.size.width:
            self.query_one(BlockMap).sync()

    def sync_text(self, model: ModelInfo | None, active: str) -> None:
        """Bring the lines up to date. `active` is the session whose table is shown."""
        if not (self.display and self.size.width):
            return
        seen = (self.view.version, model, active, self._name_of(active), self.size)
        if seen == self._seen:
            return
        self._seen = seen
        view, mirror, totals = self.view, self.view.mirror, self.view.totals()
        width = self._line("totals").size.width
        for name in ("totals", "legend"):  # set by the width, not by the text: the map must not jump
            self._line(name).styles.height = 2 if width >= 64 else 3
        if totals is None or mirror is None:
            for name in ("totals", "block", "table", "contiguous", "paged"):
                self._line(name).show(Content(""))
            self._line("totals").show(Content.styled("no engine", "$muted"))
            self._line("legend").show(legend([], width))
            return
        self._line("totals").show(flow("pool", totals_parts(totals, view.hit_rate), width))
        table = table_line(mirror, active, width - LABEL)
        nothing = Content.styled("this chat holds no blocks now", "$muted")
        self._line("table").show(labelled("table", Content(table) if table else nothing))
        if model is not None:
            contiguous, paged = comparison_lines(view, model.max_context)
            self._line("contiguous").show(labelled("contiguous", contiguous))
            self._line("paged").show(labelled("paged", paged))
        self._show_block()
        owners = sorted((view.letters.get(session), self._name_of(session)) for session in view.sessions())
        self._line("legend").show(legend(owners, width))

    def _line(self, name: str) -> Line:
        return self.query_one(f"#{name}", Line)

    def _show_block(self) -> None:
        selected = self.query_one(BlockMap).selected
        text = block_line(self.view, selected, self._name_of) if selected else None
        nothing = Content.styled("click one, or F3 and the arrow keys", "$muted")
        self._line("block").show(labelled("block", text or nothing))


LABEL = 11
"""Cells of the labels in front of the lines."""
NAME = 18
"""Most characters of a session's name."""


def labelled(label: str, content: Content) -> Content:
    return Content.assemble((f"{label:<{LABEL}}", "$muted"), content)


def flow(label: str, parts: list[Content], width: int) -> Content:
    """Parts side by side, as many as fit in a line, under each other behind the label."""
    rows: list[Content] = []
    for part in parts:
        if rows and rows[-1].cell_length + 3 + part.cell_length <= width - LABEL:
            rows[-1] = Content.assemble(rows[-1], "   ", part)
        else:
            rows.append(part)
    lines = [labelled(label if number == 0 else "", row) for number, row in enumerate(rows)]
    return Content("\n").join(lines)


def totals_parts(totals: PoolStatus, hit_rate: float | None) -> list[Content]:
    """The pool in numbers. Used blocks are those with an owner, shared ones among them."""
    used = totals.active + totals.shared
    slots = used * totals.block_size
    waste = 100 * totals.internal_waste / slots if slots else 0.0
    saved = f" (saved {totals.saved:,})" if totals.saved else ""
    figures = [
        ("used", f"{used:,}"),
        ("shared", f"{totals.shared:,}{saved}"),
        ("cached", f"{totals.cached:,}"),
        ("free", f"{totals.free:,}"),
        ("waste", f"{waste:.1f} %"),
        ("largest free run", f"{totals.largest_free_run:,}"),
    ]
    if hit_rate is not None:
        figures.append(("hit", f"{100 * hit_rate:.0f} %"))
    return [Content.assemble((f"{name} ", "$muted"), (value, "bold")) for name, value in figures]


def block_line(view: PoolView, block: int, name_of: NameOf) -> Content:
    """`213 · ref 3 · owners essay 0:5, sql 0:5 · tokens 16/16 · cached`; an owner is sequence:logical block."""
    mirror = view.mirror
    if mirror is None or block > mirror.num_blocks:
        return Content("")
    state, refs = mirror.state(block), mirror.refs[block]
    parts = [Content.styled(f"{block}", "bold"), Content(f"ref {refs}" if refs else state)]
    if refs:
        owners: list[Content] = []
        for seq, index in mirror.owners(block):
            session = mirror.tables[seq].session
            letter = view.letters.get(session)
            owners.append(
                Content.assemble((letter, f"bold {owner_color(letter)}"), f" {name_of(session)[:NAME]} {seq}:{index}")
            )
        parts.append(Content("owner " if len(owners) == 1 else "owners ") + Content(", ").join(owners))
    elif (last := view.last_owner(block)) is not None:
        parts.append(Content(f"last {name_of(last)[:NAME]}"))
    if state != "free":
        parts.append(Content(f"tokens {mirror.fill(block)}/{mirror.block_size}"))
    if refs and mirror.addressable(block):
        parts.append(Content("reusable"))
    return Content.styled(" · ", "$muted").join(parts)


def comparison_lines(view: PoolView, max_context: int) -> tuple[Content, Content]:
    """What this pool would hold under contiguous reservation, and what it holds paged."""
    if view.mirror is None:
        return Content(""), Content("")
    found = compare(view.mirror, max_context)
    contiguous = Content.assemble(
        (f"{found.contiguous:,}", "bold"),
        f" request reserving {found.reserved_tokens:,} tokens"
        if found.contiguous == 1
        else f" requests reserving {found.reserved_tokens:,} tokens each",
    )
    if found.paged is None:
        return contiguous, Content.styled("blocks are taken as tokens come; none are held now", "$muted")
    blocks = f"{found.blocks_held:,} block{'' if found.blocks_held == 1 else 's'}"
    return contiguous, Content.assemble(
        (f"{found.paged:,}", "bold"), f" like the {found.sequences:,} held now ({blocks})"
    )


def legend(owners: list[tuple[str, str]], width: int) -> Content:
    """What the glyphs mean, and the letters of the sessions that own blocks."""
    glyphs = [
        Content.assemble(("A", "bold $background on $block-shared"), " shared"),
        Content("▃ filling"),
        Content.assemble((":", "$block-cached"), " cached"),
        Content.assemble(("·", "$block-free"), " free"),
        Content.assemble(("+", "bold $block-cow"), " copied"),
    ]
    names = [
        Content.assemble((letter.lower(), f"bold {owner_color(letter)}"), f" {name[:NAME]}") for letter, name in owners
    ]
    return flow("legend", [*glyphs, *names], width)
