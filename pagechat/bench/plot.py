"""Small charts of shares, or of other numbers, over time or size: in block characters for a terminal, and as SVG.

Knows numbers and labels, not what they mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

_LEVELS = " ▁▂▃▄▅▆▇█"
_COLOURS = ("#1f6feb", "#d1570b", "#2f8f46", "#8250df", "#a0356b", "#57606a")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 2")
"""Lines differ by more than colour."""


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: list[tuple[float, float]]
    """(x, y), x ascending; y is a share, 0..1, where nothing else is said."""


def in_terminal(lines: list[Line], *, width: int = 72) -> str:
    """One row of block characters a line: each column is the mean share of its stretch of x, full height is 1."""
    begin, end = _range(lines)
    label = max(len(line.name) for line in lines)
    rows = []
    for line in lines:
        columns: list[list[float]] = [[] for _ in range(width)]
        for x, share in line.points:
            columns[min(width - 1, int((x - begin) / (end - begin) * width))].append(share)
        row: list[str] = []
        last = 0.0
        for column in columns:
            if line.points and not column and begin + (len(row) + 1) / width * (end - begin) > line.points[-1][0]:
                row.append(" ")  # the line has ended
                continue
            last = sum(column) / len(column) if column else last
            row.append(_LEVELS[max(1, min(8, round(last * 8)))])
        rows.append(f"{line.name:<{label}} |{''.join(row)}|")
    return "\n".join(rows)


def round_up(value: float) -> float:
    """A positive number to one digit: where a y axis may end."""
    digit: float = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / digit) * digit


def as_svg(
    lines: list[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
    top: float = 1.0,
    ticks: str = ".0%",
) -> str:
    """A line chart on a light ground, 760 x 400, with a legend; `logarithmic` in x. The y axis goes from 0 to `top`,
    its numbers are written as the format `ticks` says."""
    left, above, width, height = 64, 56, 480, 280
    scale = math.log if logarithmic else float
    begin, end = (scale(value) for value in _range(lines))

    def place(x: float, y: float) -> str:
        return f"{left + (scale(x) - begin) / (end - begin) * width:.1f},{above + (1 - y / top) * height:.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 400" font-family="sans-serif" font-size="12">',
        '<rect width="760" height="400" fill="#ffffff"/>',
        f'<text x="{left}" y="28" font-size="15" fill="#1f2328">{escape(title)}</text>',
    ]
    for tenth in range(0, 11, 2):
        y = above + (1 - tenth / 10) * height
        tick = format(top * tenth / 10, ticks)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#d8dee4"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#57606a">{tick}</text>')
    first, last = _range(lines)
    for x, anchor, value in ((left, "start", first), (left + width, "end", last)):
        parts.append(
            f'<text x="{x}" y="{above + height + 18}" text-anchor="{anchor}" fill="#57606a">{value:,.0f}</text>'
        )
    parts.append(
        f'<text x="{left + width / 2:.0f}" y="{above + height + 36}" text-anchor="middle" fill="#57606a">'
        f"{escape(x_label)}</text>"
    )
    parts.append(f'<text x="{left}" y="{above - 10}" fill="#57606a">{escape(y_label)}</text>')
    for number, line in enumerate(lines):
        style = f'stroke="{_COLOURS[number % 6]}" stroke-width="2" stroke-dasharray="{_DASHES[number % 6]}"'
        points = " ".join(place(x, y) for x, y in line.points)
        y = above + 12 + number * 22
        parts.append(f'<polyline fill="none" {style} points="{points}"/>')
        parts.append(f'<path d="M{left + width + 16} {y}h28" {style}/>')
        parts.append(f'<text x="{left + width + 50}" y="{y + 4}" fill="#1f2328">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _range(lines: list[Line]) -> tuple[float, float]:
    xs = [x for line in lines for x, _ in line.points]
    begin, end = min(xs, default=0.0), max(xs, default=1.0)
    return begin, end if end > begin else begin + 1
