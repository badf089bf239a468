"""The gauges: the last minutes of the pool, a line each."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from pagechat.app.gauges import Gauges
from pagechat.app.panels import LABEL, PaneData, cut, labelled
from pagechat.app.widgets.badge import spark

VALUE = 9


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"


GAUGES: tuple[tuple[str, str, float, Callable[[float], str]], ...] = (
    ("used", "used", 1.0, _percent),
    ("tok/s", "tokens_per_s", 0.0, lambda value: f"{value:,.1f}"),
    ("shared", "shared", 0.0, _percent),
    ("cached", "cached", 1.0, _percent),
    ("hit", "hit", 1.0, _percent),
    ("waste", "waste", 0.0, _percent),
    ("running", "running", 0.0, _count),
    ("waiting", "waiting", 0.0, _count),
    ("preempted", "preemptions", 0.0, _count),
)
"""(label, field of a sample, top of the scale or 0 for the highest seen, how its value is told)."""


def content(data: PaneData, width: int, height: int) -> Content:
    seconds = len(data.gauges.samples) // 2
    head = Content.styled(f"the last {seconds // 60}:{seconds % 60:02} minutes, newest to the right", "$muted")
    return cut([head, *gauge_lines(data.gauges, width)], height)


def gauge_lines(gauges: Gauges, width: int) -> list[Content]:
    """A line for each gauge: its present value, its course, its highest."""
    columns = max(8, width - LABEL - 2 * VALUE - 6)
    lines = []
    for label, name, top, told in GAUGES:
        values = gauges.series(name, columns)
        if not values:
            continue
        highest = max(values)
        course = spark(values, top or highest or 1.0).rjust(columns, " ")
        lines.append(
            labelled(
                label,
                Content.assemble(
                    (f"{told(values[-1]):>{VALUE}} ", "bold"),
                    (course, "$accent"),
                    (f" top {told(highest):<{VALUE}}", "$muted"),
                ),
            )
        )
    return lines
