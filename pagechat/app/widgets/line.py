"""Text that changes often: drawn again only when it differs, and laid out again only when its size does."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from pagechat.app.painting import LaidOutOnce
from pagechat.app.widgets.passage import Passage


class Line(LaidOutOnce, Static):
    def __init__(self, id: str | None = None, *, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._shown: Content | Passage | None = None

    def show(self, content: Content | Passage) -> None:
        before = self._shown
        same = content.is_same(before) if isinstance(before, Content) and isinstance(content, Content) else False
        if not same:
            self._shown = content
            self.update(content, layout=self._resizes(content))

    def _resizes(self, content: Content | Passage) -> bool:
        width, height = self.content_size
        if not width:  # not laid out yet, or hidden
            return True
        wider = self.styles.is_auto_width and content.get_optimal_width(self.styles.get_rules(), 0) != width
        return wider or (self.styles.is_auto_height and content.get_height(self.styles.get_rules(), width) != height)
