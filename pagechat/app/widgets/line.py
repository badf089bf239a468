"""Text that changes often: drawn again only when it differs, and laid out again only when its size does."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from pagechat.app.painting import LaidOutOnce


class Line(LaidOutOnce, Static):
    def __init__(self, id: str | None = None, *, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._shown: Content | None = None

    def show(self, content: Content) -> None:
        if self._shown is None or not content.is_same(self._shown):
            self._shown = content
            self.update(content, layout=self._resizes(content))

    def _resizes(self, content: Content) -> bool:
        width, height = self.content_size
        if not width:  # not laid out yet, or hidden
            return True
        wider = self.styles.is_auto_width and content.get_optimal_width(self.styles.get_rules(), 0) != width
        return wider or (self.styles.is_auto_height and content.get_height(self.styles.get_rules(), width) != height)
