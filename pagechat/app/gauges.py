"""The last minutes of the pool in numbers, sampled at an even pace. It draws nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pagechat.app.pool_view import PoolView

SAMPLES = 600
"""Five minutes at two a second."""


@dataclass(frozen=True, slots=True)
class Sample:
    used: float
    """Share of blocks with an owner, 0..1; `shared` and `cached` too."""
    shared: float
    cached: float
    waste: float
    """Share of slots of owned blocks that hold no token."""
    tokens_per_s: float
    running: float
    waiting: float
    hit: float
    """Share of prompt tokens found in the cache, since the view began."""
    preemptions: float
    """Since the sample before."""


class Gauges:
    """Feeds on a `PoolView`, twice a second."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._preemptions: int | None = None

    def sample(self, view: PoolView) -> None:
        mirror, totals = view.mirror, view.totals()
        if mirror is None or totals is None:
            self._preemptions = None
            return
        used = totals.active + totals.shared
        before = mirror.preemptions if self._preemptions is None else self._preemptions
        self._preemptions = mirror.preemptions
        self.samples.append(
            Sample(
                used=used / totals.num_blocks,
                shared=totals.shared / totals.num_blocks,
                cached=totals.cached / totals.num_blocks,
                waste=totals.internal_waste / (used * totals.block_size) if used else 0.0,
                tokens_per_s=view.tokens_per_s(),
                running=mirror.running,
                waiting=mirror.waiting,
                hit=view.hit_rate or 0.0,
                preemptions=max(0, mirror.preemptions - before),
            )
        )

    def series(self, name: str, width: int) -> list[float]:
        """The values of one gauge in at most `width` columns: means over equal times, the newest last."""
        values = [float(getattr(sample, name)) for sample in self.samples]
        if len(values) <= width:
            return values
        size = -(-len(values) // width)
        cut = len(values) % size
        groups = [values[:cut]] if cut else []
        groups += [values[start : start + size] for start in range(cut, len(values), size)]
        return [sum(group) / len(group) for group in groups]
