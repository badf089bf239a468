"""`pagechat-daemon record FILE`: telemetry into a file that `pagechat --replay` plays."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from engine.blocks.observe.mirror import MirrorGap, PoolMirror
from pagechat.client import AsyncEngineClient, DaemonGone, RequestFailed, Telemetry
from pagechat.commands.exits import FAILED, OK, CommandError
from pagechat.recording import Recorder
from pagechat.signals import cancel_on_signal

SNAPSHOT_EVERY_S = 10.0


async def record(run_dir: Path | None, path: Path, *, max_bytes: int, seconds: float | None) -> int:
    """Until Ctrl-C, `max_bytes`, `seconds`, or the end of the daemon. Never replaces a file."""
    cancel_on_signal()
    async with await AsyncEngineClient.connect(run_dir, name="record") as client:
        status = await client.status()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise CommandError(f"{path} cannot be made: {error.strerror}", FAILED) from None
        model = status.model.name if status.model else ""
        with os.fdopen(descriptor, "wb") as file:
            recorder = Recorder(file, model, status.device or "", max_bytes)
            reports = client.telemetry()
            print(f"pagechat-daemon: recording to {path}; Ctrl-C ends it", file=sys.stderr)
            try:
                async with asyncio.timeout(seconds):
                    await _follow(client, reports, recorder)
            except (TimeoutError, asyncio.CancelledError):
                pass  # how one stops recording
            except DaemonGone:
                print("pagechat-daemon: the daemon has ended", file=sys.stderr)
            finally:
                reports.close()
    size = f"{recorder.bytes / 2**20:.1f} MiB"
    why = ", its bound (--max-size)" if recorder.full else ""
    print(f"pagechat-daemon: {recorder.frames:,} frames, {size}{why}, in {path}", file=sys.stderr)
    return OK


async def _follow(client: AsyncEngineClient, reports: Telemetry, recorder: Recorder) -> None:
    mirror = await _start(client, recorder)
    began = time.monotonic()
    async for report in reports:
        try:
            before = mirror.step
            mirror.apply(report)
            if mirror.step != before:
                recorder.add(report.time, report)
        except (MirrorGap, LookupError):
            mirror = await _start(client, recorder)
        if time.monotonic() - began > SNAPSHOT_EVERY_S:
            mirror, began = await _start(client, recorder), time.monotonic()
        if recorder.full:
            return


async def _start(client: AsyncEngineClient, recorder: Recorder) -> PoolMirror:
    """A snapshot into the recording, and a mirror that goes on from it."""
    while True:
        try:
            snapshot = await client.snapshot()
        except RequestFailed:  # the engine is between two lives
            await asyncio.sleep(0.5)
        else:
            recorder.add(time.time(), snapshot)
            return PoolMirror.from_snapshot(snapshot)
