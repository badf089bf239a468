"""Frames are paid for before the next one."""

from __future__ import annotations

import pytest

from pagechat.app import pace
from pagechat.app.pace import Pace


def test_a_frame_that_cost_much_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = [10.0], [3.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pace.time, "process_time", lambda: used[0])
    one = Pace()
    now[0], used[0] = 10.1, 3.07  # 0.07 s of work: 0.2 s at a share of 0.35
    assert not one.may_draw()
    now[0] = 10.21
    assert one.may_draw()
    now[0] = 10.31  # nothing was done since
    assert one.may_draw()
    used[0] = 9.0  # a frame that cost seconds: half a second later the next one comes all the same
    now[0] = 10.8
    assert not one.may_draw()
    now[0] = 10.82
    assert one.may_draw()
