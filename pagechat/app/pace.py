"""How often the screen may be drawn: as often as it wants, while that leaves most of a core to everything else."""

from __future__ import annotations

import time

SHARE = 0.35
"""Of one core, for all the app does; above it frames are left out, and keys stay quick."""
SLOWEST_S = 0.5
"""Between two frames, whatever they cost."""


class Pace:
    """Asked before each frame."""

    def __init__(self) -> None:
        self._at, self._used = time.monotonic(), time.process_time()

    def may_draw(self) -> bool:
        """The frame before has been paid for: so much time has passed that it took no more than its share."""
        now, used = time.monotonic(), time.process_time()
        if used - self._used > SHARE * (now - self._at) and now - self._at < SLOWEST_S:
            return False
        self._at, self._used = now, used
        return True
