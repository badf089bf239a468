"""`pagechat-daemon watch`: telemetry as JSON lines, one object a line, first a snapshot.

A reader can rebuild the pool from them (engine/blocks/mirror.py does): after a gap in the numbers, or when a new
engine has taken over, another snapshot line comes before the reports that follow it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from engine.protocol import NO_EVENT, Message, Snapshot
from pagechat.client import AsyncEngineClient, DaemonGone, RequestFailed
from pagechat.commands import exits
from pagechat.signals import cancel_on_signal


async def watch(run_dir: Path | None) -> int:
    """Until Ctrl-C, the end of the daemon or of the reader. Raises NoDaemon, RequestFailed."""
    cancel_on_signal()
    try:
        async with await AsyncEngineClient.connect(run_dir, name="watch") as client:
            await _follow(client)
    except asyncio.CancelledError:
        return exits.OK  # Ctrl-C is how one stops watching
    except DaemonGone:
        print("pagechat-daemon: the daemon has ended", file=sys.stderr)
        return exits.OK
    except BrokenPipeError:
        silence_stdout()
        return exits.CLOSED_PIPE
    return exits.OK


async def _follow(client: AsyncEngineClient) -> None:
    reports = client.telemetry()
    snapshot = await _snapshot(client)
    step = snapshot.step
    async for report in reports:
        takeover = report.first_event == NO_EVENT
        if report.step <= step and not takeover:
            continue  # the snapshot held it already
        if report.step != step + 1 or takeover:
            step = (await _snapshot(client)).step
        if report.step == step + 1 and not takeover:
            _print(report)
            step = report.step


async def _snapshot(client: AsyncEngineClient) -> Snapshot:
    while True:
        try:
            snapshot = await client.snapshot()
        except RequestFailed as error:
            if error.code != "engine_died":
                raise
        else:
            _print(snapshot)
            return snapshot


def _print(message: Message) -> None:
    sys.stdout.write(msgspec.json.encode(message).decode("utf-8") + "\n")
    sys.stdout.flush()


def silence_stdout() -> None:
    """After a BrokenPipeError: keeps the interpreter's last flush from failing again, with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
