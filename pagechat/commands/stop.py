"""`pagechat-daemon stop`: ends the daemon and returns when it has gone."""

from __future__ import annotations

import sys
from pathlib import Path

from pagechat.client import AsyncEngineClient
from pagechat.commands import exits


async def stop(run_dir: Path | None) -> int:
    """Exit code. Raises NoDaemon."""
    async with await AsyncEngineClient.connect(run_dir, name="stop") as client:
        pid = client.welcome.pid
        try:
            await client.stop_daemon()
        except TimeoutError:
            print(f"pagechat-daemon: process {pid} was asked to stop and still runs", file=sys.stderr)
            return exits.FAILED
    print(f"pagechat-daemon: stopped (process {pid})", file=sys.stderr)
    return exits.OK
