"""A chat's requests go before or behind those of others, the running one too."""

from __future__ import annotations

from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import command
from tests.pagechat.app.waiting import say, screen_text, wait_until


async def test_a_priority_is_shown_changed_and_told_to_the_engine(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["x"] * 50)
    async with open_app(daemon, size=(160, 40)) as (app, pilot):
        await say(app, pilot, "hello")
        daemon.go(3)
        await wait_until(pilot, lambda: daemon.core.live_sessions.infos()[0].state == "running")
        await pilot.press("f3", "5", "p", "p")
        await wait_until(pilot, lambda: "urgent (priority -2)" in screen_text(app))
        assert [info.priority for info in daemon.core.live_sessions.infos()] == [-2]
        await wait_until(
            pilot, lambda: any("hello" in line and "  -2 " in line for line in screen_text(app).splitlines())
        )
        await pilot.press("P")
        assert [info.priority for info in daemon.core.live_sessions.infos()] == [-1]
        # and of the requests to come
        await command(app, pilot, "/priority patient")
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await say(app, pilot, "again")
        daemon.go(2)
        await wait_until(pilot, lambda: [info.priority for info in daemon.core.live_sessions.infos()] == [1])
        await command(app, pilot, "/priority first")
        await wait_until(pilot, lambda: "A priority is urgent, normal, patient" in screen_text(app))
        await command(app, pilot, "/priority")
        await wait_until(pilot, lambda: "requests are patient (priority 1)" in screen_text(app))


async def test_a_priority_is_kept_for_the_next_start(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await command(app, pilot, "/priority urgent")  # before anything is said, too
        await say(app, pilot, "hello")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("ctrl+n")
        await say(app, pilot, "again")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await command(app, pilot, "/priority 3")
    daemon = FakeDaemon(step_s=0, script=lambda _: ["x"] * 50)
    async with open_app(daemon) as (app, pilot):
        assert [chat.priority for chat in app.tabs.conversations] == [-1, 3]
        await say(app, pilot, "once more")
        daemon.go(2)
        await wait_until(pilot, lambda: [info.priority for info in daemon.core.live_sessions.infos()] == [3])
