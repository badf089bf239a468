"""The guided tour shows, on a real pool, what it says it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagechat.app import link, pace
from pagechat.app.app import PagechatApp
from pagechat.app.tour import STEPS
from pagechat.app.widgets.tour_card import TourCard
from pagechat.store import Store
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import screen_text, wait_until


async def test_every_step_of_the_tour_is_seen(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the tour's pool of 48 blocks, and long answers
    monkeypatch.setattr(link, "SUBSCRIBE_S", 0)
    monkeypatch.setattr(pace, "SHARE", 100.0)
    daemon = FakeDaemon(num_blocks=48, keeps=True, step_s=0.002, script=lambda prompt: ["w "] * (len(prompt) * 3))
    app = PagechatApp(daemon.connect, Store(db), tour=True)
    async with app.run_test(size=(140, 45)) as pilot:
        assert app.tour is not None
        for number, step in enumerate(STEPS, start=1):
            await wait_until(pilot, lambda number=number: len(app.tour.seen) == number, 60)
            assert app.tour.seen[-1], step.title
            await wait_until(pilot, lambda step=step: step.title in screen_text(app) and "✓" in screen_text(app))
            await pilot.press("f8")
        await wait_until(pilot, lambda: not app.main.query_one(TourCard).display)
        await app.leave()
