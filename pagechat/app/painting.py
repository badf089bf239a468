"""Textual's compositor, which paints no more of the screen than changed.

Its own renders every line of every widget that lies near a change, containers behind other widgets too, and throws
most of that away. With a map on one side and an answer growing on the other, that is all of the screen, many times a
second, and a key that is pressed meanwhile waits for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region, Size
from textual.strip import Strip

from pagechat.app.drawing import Shielded, lines_of

Chops = list[dict[int, Strip | None]]
"""For each line of the screen: its pieces, by the cells they begin at."""


class LaidOutOnce(Shielded):
    """Textual lays the screen out once more whenever the size of a widget, or of what scrolls in it, has come out new.
    Here that says nothing new: it is why the screen was laid out. (A scrollbar that comes or goes asks by itself.)

    For a `Widget`, before its other bases; none itself, or the widget's style sheet would be looked for here alone.
    """

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        return super()._size_updated(size, virtual_size, container_size, layout=False)  # type: ignore[misc]


class FrugalCompositor(Compositor):
    """Draws the same as its base."""

    def render_partial_update(self) -> ChopsUpdate | None:
        regions = self._dirty_regions.copy()
        self._dirty_regions.clear()
        if not regions:
            return None
        spans = list(self._regions_to_spans(regions))
        wanted: dict[int, set[int]] = {}
        for y, begin, end in spans:
            pieces = itertools.pairwise(self.cuts[y])
            wanted.setdefault(y, set()).update(cut for cut, until in pieces if until > begin and cut < end)
        chops = cast("Sequence[Mapping[int, Strip | None]]", self._paint(wanted))
        return ChopsUpdate(chops, spans, [cuts[1:] for cuts in self.cuts])

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        lines = filter(is_rendered_line, crop.line_range)
        return cast("Sequence[Mapping[int, Strip]]", self._paint({y: set(self.cuts[y][:-1]) for y in lines}))

    def _paint(self, wanted: dict[int, set[int]]) -> Chops:
        """The pieces that are wanted, as {line: where they begin}. Front to back: what is covered is not drawn."""
        cuts = self.cuts
        chops: Chops = [dict.fromkeys(line[:-1]) for line in cuts]
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            left, right = shown.column_span
            lines = [y for y in shown.line_range if y in wanted and any(left <= cut < right for cut in wanted[y])]
            if not lines:
                continue
            top = lines[0]
            crop = Region(left - region.x, top - region.y, shown.width, lines[-1] - top + 1)
            strips = lines_of(widget, crop)
            for y in lines:
                own = [cut for cut in cuts[y] if left <= cut <= right]
                missing = wanted[y]
                for cut, piece in zip(own, strips[y - top].divide([cut - left for cut in own[1:]]), strict=False):
                    if cut in missing:
                        missing.remove(cut)
                        chops[y][cut] = piece
                if not missing:
                    del wanted[y]
        return chops
