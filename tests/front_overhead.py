"""What the front costs: `python -m tests.front_overhead [--streams 64] [--tokens-per-second 2000] [--seconds 10]`.

The engine is tests/fake_engine.py, whose steps last as long as makes that rate, so what is measured is the front: its
processor time, and how long after the engine's step (StepReport.time) the client has each event in its hands. The
second includes the client's own time; client, front and engine share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pagechat.bench.machine import this_machine
from pagechat.bench.sse import Streamed, complete
from pagechat.client import AsyncEngineClient
from tests.daemons import Daemon, end, model_folder
from tests.pagechat.conftest import fake_engine_environment

_PROMPT_WORDS = 25


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(run_dir: Path, streams: int, seconds: float) -> dict[str, float]:
    async with await AsyncEngineClient.connect(run_dir) as client:
        await client.snapshot()
        status = await client.status()
        steps: list[float] = []

        async def follow() -> None:
            async for report in client.telemetry():
                if report.generated_tokens:
                    steps.append(report.time)

        following = asyncio.create_task(follow())
        offset = time.time() - time.perf_counter()
        deadline = time.perf_counter() + seconds

        async def keep_asking(number: int) -> list[Streamed]:
            found = []
            while time.perf_counter() < deadline:
                prompt = f"stream {number} " + "and so on " * _PROMPT_WORDS
                body = {"prompt": prompt, "max_tokens": 400, "stream": True, "session": f"long {number}"}
                found.append(await complete(f"{status.http}/v1", body, None, 120))
            return found

        used, begun = processor_seconds(status.pid), time.perf_counter()
        found = [one for each in await asyncio.gather(*map(keep_asking, range(streams))) for one in each]
        took = time.perf_counter() - begun
        share = (processor_seconds(status.pid) - used) / took
        following.cancel()
    events = sorted(arrival + offset for one in found for arrival in one.arrivals)
    delays = sorted(_since_step(events, steps))
    return {
        "events_per_second": len(events) / took,
        "front_processor_share": share,
        "delay_p50_ms": delays[len(delays) // 2] * 1e3,
        "delay_p95_ms": delays[int(len(delays) * 0.95)] * 1e3,
        "failed": sum(one.error is not None for one in found),
    }


def _since_step(events: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Seconds from the newest step before each event; both ascend."""
    delays, newest = [], 0
    for event in events:
        while newest + 1 < len(steps) and steps[newest + 1] <= event:
            newest += 1
        delays.append(event - steps[newest])
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens-per-second", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pc-") as folder:
        base = Path(folder)
        environment = fake_engine_environment(model_folder(base / "model"), base / "notes")
        environment["FAKE_ENGINE_STEP_S"] = str(given.streams / given.tokens_per_second)
        arguments = ("--num-blocks", "4000", "--http", "127.0.0.1:0", "--run-dir", str(base / "run"))
        daemon = Daemon(*arguments, env={**os.environ, **environment, "PAGECHAT_DATA_DIR": str(base / "data")})
        try:
            daemon.until_answering(base / "run")
            found = asyncio.run(measure(base / "run", given.streams, given.seconds))
        finally:
            end(daemon)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))
    print(this_machine().line())


if __name__ == "__main__":
    main()
