"""The same memory under each allocation policy, as maps below each other, while requests run."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from pagechat.app import ghosts
from pagechat.app.pool_view import PoolView
from pagechat.app.widgets.line import Line

DRAW_S = 0.5
"""As often as the engine tells of other policies."""


class GhostScreen(ModalScreen[None]):
    """Closes with any of its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,g,q,enter", "dismiss", "Close")]

    def __init__(self, view: PoolView) -> None:
        super().__init__()
        self._view = view

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog ghosts"):
            title = "The same requests, the same memory: what each policy would keep"
            yield Static(Content.assemble((title, "bold"), ("   esc closes", "$muted")), classes="title", markup=False)
            yield Line("ghosts")

    def on_mount(self) -> None:
        self.set_interval(DRAW_S, self._draw)
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        line = self.query_one("#ghosts", Line)
        if line.size.width and line.size.height:
            line.show(ghosts.content(self._view, line.size.width, line.size.height))
