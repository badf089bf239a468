"""Text that is updated only when it differs."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Line(Static):
    def __init__(self, id: str | None = None, *, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._shown: Content | None = None

    def show(self, content: Content) -> None:
        if self._shown is None or not content.is_same(self._shown):
            self._shown = content
            self.update(content)
