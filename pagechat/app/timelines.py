"""What each sequence did when, from telemetry: read its prompt, wrote, gave its blocks up, came back.

```
time      |-- prefill --|-------- decode --------|- preempted -|- prefill -|-- decode --
```
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from engine.protocol import StepReport

SpanKind = Literal["prefill", "decode", "preempted"]
MOST_SPANS = 200
MOST_SEQUENCES = 512
PAUSE_S = 0.5
"""A longer pause between two steps of a sequence is shown as one: it ran, and then it did not."""


@dataclass(slots=True)
class Span:
    kind: SpanKind
    begin: float
    """Unix time, seconds; `end` too."""
    end: float


@dataclass(slots=True)
class Timeline:
    """One sequence's spans, oldest first."""

    seq: int
    session: str
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=MOST_SPANS))
    tokens: int = 0
    preemptions: int = 0
    written: int = 0
    """Tokens added one at a time: about what was generated."""

    @property
    def preempted(self) -> bool:
        return bool(self.spans) and self.spans[-1].kind == "preempted"

    def seconds(self, kind: SpanKind) -> float:
        return sum(span.end - span.begin for span in self.spans if span.kind == kind)

    def add(self, kind: SpanKind, begin: float, end: float) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.kind == "preempted" and kind != "preempted":
            last.end = max(last.end, begin)
        if last is not None and last.kind == kind and begin - last.end < PAUSE_S:
            last.end = end
        else:
            self.spans.append(Span(kind, begin, end))


class Timelines:
    """Of all sequences that a stream of reports tells about; the oldest are forgotten."""

    def __init__(self) -> None:
        self._of: dict[int, Timeline] = {}
        self.now = 0.0
        """Unix time of the last report."""

    def apply(self, report: StepReport) -> None:
        self.now = report.time
        begin = report.time - report.duration_s
        for event in report.events:
            if event.seq >= 0 and event.session:
                self._get(event.seq, event.session)
        for one in report.preempted:
            timeline = self._get(one.seq, one.session)
            timeline.add("preempted", begin, report.time)
            timeline.preemptions += 1
            timeline.tokens = 0
        for seq, length in report.lengths:
            found = self._of.get(seq)
            if found is None:
                continue
            grown, found.tokens = length - found.tokens, length
            if grown > 1:
                found.add("prefill", begin, report.time)
            elif grown == 1:
                found.add("decode", begin, report.time)
                found.written += 1

    def start(self, seq: int, session: str, tokens: int) -> None:
        """A sequence that was there before the stream."""
        self._get(seq, session).tokens = tokens

    def get(self, seq: int) -> Timeline | None:
        return self._of.get(seq)

    def newest(self) -> list[Timeline]:
        """All that are known, the newest first."""
        return list(reversed(self._of.values()))

    def _get(self, seq: int, session: str) -> Timeline:
        timeline = self._of.get(seq)
        if timeline is None:
            timeline = self._of[seq] = Timeline(seq, session)
            if len(self._of) > MOST_SEQUENCES:
                del self._of[next(iter(self._of))]
        return timeline


def bar(timeline: Timeline, begin: float, end: float, width: int) -> str:
    """The time from `begin` to `end` in `width` cells: ▒ prefill, █ decode, ! preempted, · nothing."""
    glyphs = {"prefill": "▒", "decode": "█", "preempted": "!"}
    cells = ["·"] * width
    scale = width / max(end - begin, 1e-9)
    for span in timeline.spans:
        first = int((span.begin - begin) * scale)
        after = max(first + 1, math.ceil((span.end - begin) * scale))
        for cell in range(max(0, first), min(width, after)):
            cells[cell] = glyphs[span.kind]
    return "".join(cells)
