"""The memory pane: totals, the block map, a panel that tells more, the legend."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from pagechat.app.arrangement import Order
from pagechat.app.drawing import fallback
from pagechat.app.panels import NAME, PaneData, flow
from pagechat.app.panels.all import PANELS
from pagechat.app.panels.overview import totals_parts
from pagechat.app.pool_view import PoolView
from pagechat.app.titles import short
from pagechat.app.widgets.block_map import BlockMap
from pagechat.app.widgets.line import Line
from pagechat.app.widgets.map_grid import DENSITY, LETTERS_AND_FILL, OVERVIEW
from pagechat.app.widgets.panel_bar import PanelBar
from pagechat.app.widgets.tab_bar import owner_color


class MemoryPane(Vertical):
    """Shows a `PoolView`. `sync_map` is cheap and may run ten times a second; `sync_text` twice."""

    def __init__(self, view: PoolView, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view
        self.panel = "overview"
        self._data: PaneData | None = None
        self._seen: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Line("totals")
        yield BlockMap(self.view, id="map")
        yield PanelBar(list(PANELS))
        yield Line("panel")
        yield Line("legend")

    @property
    def block_map(self) -> BlockMap:
        return self.query_one(BlockMap)

    @on(BlockMap.Selected)
    def _selected(self) -> None:
        if self._data is not None:
            self._data = replace(self._data, selected=self.query_one(BlockMap).selected)
        self.redraw_panel()

    @on(BlockMap.Rearranged)
    def _rearranged(self) -> None:
        if self._data is not None:
            self._show_legend(self._data)

    @on(PanelBar.Chosen)
    def _chosen(self, event: PanelBar.Chosen) -> None:
        self.show_panel(event.name)

    def show_panel(self, name: str) -> None:
        self.panel = name
        self.query_one(PanelBar).show(name)
        self.redraw_panel()

    def sync_map(self) -> None:
        if self.display and self.size.width:
            self.query_one(BlockMap).sync()

    def sync_text(self, data: PaneData, moves: bool) -> None:
        """Bring the lines up to date. `moves`: time alone changes what the panel tells."""
        if not (self.display and self.size.width):
            return
        shown = (data.view.version, data.model, data.active, data.name_of(data.active), self.size, len(data.chats))
        if shown == self._seen and not moves:
            return
        self._seen, self._data = shown, data
        view, totals = self.view, self.view.totals()
        width = self._line("totals").size.width
        for name in ("totals", "legend"):  # set by the width, not by the text: the map must not jump
            self._line(name).styles.height = 2 if width >= 64 else 3
        if totals is None:
            self._line("totals").show(Content.styled("no engine", "$muted"))
            self._line("panel").show(Content(""))
            self._line("legend").show(legend([], width))
            return
        label = "frozen" if view.frozen_at is not None else "pool"
        self._line("totals").show(flow(label, totals_parts(totals, view.hit_rate), width))
        self.redraw_panel()
        self._show_legend(data)

    def redraw_panel(self) -> None:
        """What the panel is made from may tell more than a moment ago."""
        line = self._line("panel")
        if self._data is not None and line.size.width:
            line.show(_panel(self.panel, self._data, line.size.width, line.size.height))

    def _show_legend(self, data: PaneData) -> None:
        view, line = data.view, self._line("legend")
        owners = sorted((view.letters.get(session), data.name_of(session)) for session in view.sessions())
        line.show(legend(owners, line.size.width, self.block_map.arrangement.order, self.block_map.zoom, seen(view)))

    def _line(self, name: str) -> Line:
        return self.query_one(f"#{name}", Line)


@fallback(lambda name, data, width, height: Content.styled("This panel cannot be drawn now.", "$muted"))
def _panel(name: str, data: PaneData, width: int, height: int) -> Content:
    return PANELS[name](data, width, height)


def seen(view: PoolView) -> set[str]:
    """What blocks look like now, and what has happened to some of them since the view began."""
    totals = view.totals()
    if totals is None:
        return set()
    found = {kind for kind in ("shared", "cached", "free") if getattr(totals, kind)}
    found |= {"owned"} if totals.active else set()
    found |= {kind for kind in ("copy", "evict") if view.counts[kind]}
    return found | ({"preempt"} if view.preempted else set())


def legend(
    owners: list[tuple[str, str]], width: int, order: Order = "id", zoom: int | None = None, found: Collection[str] = ()
) -> Content:
    """What the glyphs mean that the map shows at this zoom, the order where it is not that of ids, and the letters of
    the sessions that own blocks. `found`: as `seen` tells."""
    far, full = zoom in (DENSITY, OVERVIEW), zoom == LETTERS_AND_FILL
    glyphs = {
        "owned": Content("▀ two blocks" if zoom == OVERVIEW else "▃ share in use" if far else "▃ filling"),
        "shared": Content.assemble((" " if far else "A", "bold $background on $block-shared"), " shared"),
        "cached": Content.assemble((":", "$block-cached"), " cached"),
        "free": Content.assemble(("·", "$block-free"), " free"),
        "copy": Content.assemble((" " if far else "+", "bold $background on $block-cow"), " copied"),
    }
    if not far:
        glyphs |= {
            "evict": Content.assemble(("x", "bold $block-cow"), " evicted"),
            "preempt": Content.assemble(("!", "bold $block-cow"), " preempted"),
        }
    if full:
        glyphs["owned"] = Content("█▃ how full")
    names = [
        Content.assemble((letter.lower(), f"bold {owner_color(letter)}"), f" {short(name, NAME)}")
        for letter, name in owners
    ]
    ordered = [] if order == "id" else [Content.styled(f"by {order}", "bold $accent")]
    drawn = {*found, *(["owned"] if full and "shared" in found else [])}  # shared blocks tell how full they are, too
    shown = [glyph for kind, glyph in glyphs.items() if kind in drawn]
    return flow("legend", [*ordered, *shown, *names], width)
