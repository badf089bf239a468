"""What cannot be drawn is shown otherwise: a fault in drawing ends nothing.

Everything else that goes wrong is told to the person or ends the app with its traceback. But what is drawn comes from a
model or another client, is drawn again at every start, and may be drawn ten times a second: there a fault would take a
whole chat away. So each drawing has something simpler to fall back on, and what happened is kept.
"""

from __future__ import annotations

import functools
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

problems: deque[str] = deque(maxlen=20)
"""Tracebacks of the last faults, the newest last."""


def failed(error: Exception) -> None:
    """A drawing did not succeed."""
    problems.append("".join(traceback.format_exception(error)))


def fallback(
    simpler: Callable[..., Any],
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """The function, or `simpler` with the same arguments when it fails."""

    def decorate(draw: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(draw)
        def drawn(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
            try:
                return draw(*arguments, **options)
            except Exception as error:
                failed(error)
                found: Result = simpler(*arguments, **options)
                return found

        return drawn

    return decorate


def lines_of(widget: Widget, crop: Region) -> list[Strip]:
    """The widget's lines, or blank ones."""
    try:
        return widget.render_lines(crop)
    except Exception as error:
        failed(error)
        return [Strip.blank(crop.width)] * crop.height


class Shielded:
    """A widget that is laid out and drawn whatever it holds; for a `Widget`, before its other bases."""

    def render_lines(self, crop: Region) -> list[Strip]:
        try:
            lines: list[Strip] = super().render_lines(crop)  # type: ignore[misc]
        except Exception as error:
            failed(error)
            return [Strip.blank(crop.width)] * crop.height
        return lines

    def get_content_width(self, container: Size, viewport: Size) -> int:
        try:
            width: int = super().get_content_width(container, viewport)  # type: ignore[misc]
        except Exception as error:
            failed(error)
            return container.width
        return width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        try:
            height: int = super().get_content_height(container, viewport, width)  # type: ignore[misc]
        except Exception as error:
            failed(error)
            return 1
        return height
