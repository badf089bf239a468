"""A recording played into a `PoolView`: forwards, backwards, to any place. It knows no screen."""

from __future__ import annotations

import contextlib
from bisect import bisect_right

from engine.blocks.observe.mirror import MirrorGap
from engine.protocol import Snapshot
from pagechat.app.letters import Letters
from pagechat.app.pool_view import PoolView
from pagechat.recording import Recording

SPEEDS = (0.5, 1.0, 2.0, 5.0, 20.0)


class Player:
    """Stands after frame `index`. Its view's clock is the recording's, so flashes and rates are those of then."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.index = 0
        self.time = recording.frames[0].time
        self.playing = False
        self.speed = 1.0
        self._times = [frame.time for frame in recording.frames]
        self._snapshots = [n for n, frame in enumerate(recording.frames) if isinstance(frame.content, Snapshot)]
        self.view = PoolView(Letters(), lambda: self.time)
        self._apply(0)

    @property
    def last(self) -> int:
        return len(self.recording.frames) - 1

    @property
    def elapsed(self) -> float:
        """Seconds from the beginning."""
        return self.time - self._times[0]

    def advance(self, seconds: float) -> None:
        """Time goes on by so much, at the present speed."""
        self.time = min(self.time + seconds * self.speed, self._times[-1])
        while self.index < self.last and self._times[self.index + 1] <= self.time:
            self._apply(self.index + 1)
        if self.index == self.last:
            self.playing = False

    def step(self, frames: int) -> None:
        """To a frame before or after, its own time being the time."""
        self.seek_frame(self.index + frames)

    def seek(self, seconds: float) -> None:
        """To a moment, counted from the beginning."""
        moment = self._times[0] + max(0.0, min(seconds, self.recording.seconds))
        self.seek_frame(bisect_right(self._times, moment) - 1)
        self.time = max(self.time, moment)

    def seek_frame(self, index: int) -> None:
        index = max(0, min(index, self.last))
        if index != self.index + 1:
            start = self._snapshots[bisect_right(self._snapshots, index) - 1]
            if index <= self.index or start > self.index:
                self.index = start - 1
        while self.index < index:
            self.time = self._times[self.index + 1]
            self._apply(self.index + 1)
        self.time = self._times[index]

    def _apply(self, index: int) -> None:
        content = self.recording.frames[index].content
        self.index = index
        if isinstance(content, Snapshot):
            # Where nothing was missed, a snapshot changes nothing: flashes and timelines go on.
            if self.view.mirror is None or self.view.mirror.step != content.step:
                self.view.reset(content)
        else:
            with contextlib.suppress(MirrorGap, LookupError):  # a gap: the next snapshot goes on from there
                self.view.apply(content)
