"""The app's connection to the daemon: found or started, followed, and found again when it is lost.

`Link.run` lives as long as the app. It tells what happens through `LinkState`; it feeds the pool view from
telemetry. It knows no widget.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from engine.blocks.observe.mirror import MirrorGap
from engine.protocol import Snapshot, StepReport
from pagechat.app.client_api import Client
from pagechat.client import ClientError, DaemonGone, RequestFailed
from pagechat.protocol import Status

Phase = Literal["connecting", "loading", "ready", "lost", "failed"]

POLL_LOADING_S = 0.2
POLL_READY_S = 1.0
SUBSCRIBE_S = 0.2
"""Time for a subscription to reach the publisher; what is published before it does is not seen."""
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class LinkState:
    """connecting: looking for a daemon or starting one. loading: its engine is not ready (see `status`).
    ready: chats can be answered. lost: the daemon went away; tried again by itself.
    failed: needs a person (see `reason`); `Link.retry` tries again."""

    phase: Phase
    reason: str = ""
    status: Status | None = None


class _Moved(Exception):
    """Another server was chosen."""


class Link:
    """Keeps one client connected. `client` is None while there is none."""

    def __init__(
        self,
        open_client: Callable[[], Awaitable[Client]],
        reset_pool: Callable[[Snapshot | None], None],
        apply_report: Callable[[StepReport], None],
        changed: Callable[[LinkState], None],
    ) -> None:
        self._open = open_client
        self._reset_pool = reset_pool
        self._apply_report = apply_report
        self._changed = changed
        self._retry = asyncio.Event()
        self._moving = asyncio.Event()
        self._resyncing: asyncio.Task[None] | None = None
        self.client: Client | None = None
        self.state = LinkState("connecting")

    def retry(self) -> None:
        """Try again now: after `failed`, or instead of waiting after `lost`."""
        self._retry.set()

    def move(self) -> None:
        """`open_client` leads elsewhere now: leave this daemon, whatever it does, and go there."""
        self._moving.set()
        self._retry.set()

    def resync(self) -> None:
        """The pool view has missed something: start it again from a snapshot."""
        if self.client is not None and self._resyncing is None:
            self._resyncing = asyncio.create_task(self._resync(self.client))
            self._resyncing.add_done_callback(self._resynced)

    def _resynced(self, task: asyncio.Task[None]) -> None:
        self._resyncing = None
        if not task.cancelled():
            task.exception()  # a daemon that went away is noticed by `run`

    async def run(self) -> None:
        """Connect and follow, for ever; cancelled when the app ends."""
        failures, ever_ready = 0, False
        while True:
            self._retry.clear()
            if self._moving.is_set() or not ever_ready:
                self._set(LinkState("connecting"))
            self._moving.clear()
            try:
                self.client = await self._open()
                await self._follow(self.client)
            except _Moved:
                failures = 0
                continue
            except (ClientError, OSError, RuntimeError) as error:
                ever_ready = ever_ready or self.state.phase == "ready"
                if self.state.phase == "ready":
                    failures = 0
                reason = str(error) or type(error).__name__
            finally:
                await self._let_go()
            if not ever_ready:
                self._set(LinkState("failed", reason))
                await self._retry.wait()
                continue
            pause = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
            failures += 1
            self._set(LinkState("lost", reason))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._retry.wait(), pause)

    async def _let_go(self) -> None:
        client, self.client = self.client, None
        self._reset_pool(None)
        if client is not None:
            with contextlib.suppress(ClientError, OSError):
                await client.close()

    async def _follow(self, client: Client) -> None:
        """Poll the status and keep the pool's mirror fed. Ends by DaemonGone."""
        feed: asyncio.Task[None] | None = None
        engine: int | None = None
        try:
            while True:
                status = await client.status()
                self._check_moving()
                if status.state == "ready":
                    if engine != status.engine_pid:  # a new engine numbers its events from 0 again
                        await _end(feed)
                        feed, engine = asyncio.create_task(self._feed(client)), status.engine_pid
                    self._set(LinkState("ready", status=status))
                elif status.state == "failed":
                    await _end(feed)
                    feed = engine = None
                    self._set(LinkState("failed", status.error or "the engine failed", status))
                    await self._retry.wait()
                    self._check_moving()
                    # That state is final: such a daemon serves nobody. It goes, and another one is started.
                    with contextlib.suppress(TimeoutError):
                        await client.stop_daemon()
                    raise DaemonGone("trying again")
                else:
                    if feed is not None:
                        await _end(feed)
                        feed = engine = None
                        self._reset_pool(None)
                    self._set(LinkState("loading", status.error or "", status))
                if feed is not None and feed.done():
                    feed.result()  # raises what ended it
                    engine = None
                with contextlib.suppress(TimeoutError):
                    pause = POLL_READY_S if status.state == "ready" else POLL_LOADING_S
                    await asyncio.wait_for(self._moving.wait(), pause)
                self._check_moving()
        finally:
            await _end(feed)

    def _check_moving(self) -> None:
        if self._moving.is_set():
            raise _Moved

    async def _feed(self, client: Client) -> None:
        """Subscribe, take a snapshot, apply what follows it; again after a gap (the ZeroMQ guide's clone pattern)."""
        reports = client.telemetry()
        try:
            await asyncio.sleep(SUBSCRIBE_S)
            await self._resync(client)
            async for report in reports:
                try:
                    self._apply_report(report)
                except (MirrorGap, KeyError, IndexError):
                    await self._resync(client)
        finally:
            reports.close()
        raise DaemonGone("telemetry ended")

    async def _resync(self, client: Client) -> None:
        while True:
            try:
                self._reset_pool(await client.snapshot())
            except RequestFailed:  # the engine is between two lives
                await asyncio.sleep(0.5)
            else:
                return

    def _set(self, state: LinkState) -> None:
        if state != self.state or state.phase == "connecting":
            self.state = state
            self._changed(state)


async def _end(task: asyncio.Task[None] | None) -> None:
    """The end of `task`, whatever it came to."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: what it would tell is known by other ways
