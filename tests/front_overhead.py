"""What the front costs: `python -m tests.front_overhead [--streams 64] [--tokens-per-second 2000] [--seconds 10]`.

The engine is tests/fake_engine.py, whose steps last as long as makes that rate, so what is measured is the front: its
processor time, and how long after the engine's step (StepReport.time) each event has arrived at the client's socket
(by the kernel's clock, so the client's own slowness does not count) and has been read there. `floor_...` are the same
times of events that a bare loop of as many sends brings to the same client. Linux only; client, front and engine share
this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import struct
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagechat.bench.machine import this_machine
from pagechat.client import AsyncEngineClient
from tests.daemons import Daemon, end, model_folder
from tests.pagechat.conftest import fake_engine_environment

_PROMPT_WORDS = 25
_EVENT = b'"finish_reason":null'
"""In each event with text, and in no other."""
_SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; Python has no name for it."""


@dataclass(slots=True)
class Arrivals:
    """When events came, seconds since 1970."""

    arrived: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)


async def receive(listener: tuple[str, int], request: bytes, found: Arrivals) -> bytes:
    """Sends a request and notes its events as they come. The beginning of what was received."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    head = b""
    with socket.create_connection(listener) as connection:
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        connection.sendall(request)
        connection.setblocking(False)

        def read() -> None:
            nonlocal head
            data, notes, _, _ = connection.recvmsg(65536, 64)
            now = time.time()
            if not data:
                ended.set_result(None)
                loop.remove_reader(connection)
                return
            head += data[: 200 - len(head)]
            seconds, nanoseconds = struct.unpack("qq", notes[0][2])
            count = data.count(_EVENT)
            found.arrived += [seconds + nanoseconds * 1e-9] * count
            found.read += [now] * count

        loop.add_reader(connection, read)
        await ended
    return head


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
        place = urllib.parse.urlsplit(status.http or "")
        deadline, found, failed = time.perf_counter() + seconds, Arrivals(), 0

        async def keep_asking(number: int) -> None:
            nonlocal failed
            while time.perf_counter() < deadline:
                prompt = f"stream {number} " + "and so on " * _PROMPT_WORDS
                body = {"prompt": prompt, "max_tokens": 400, "stream": True, "session": f"long {number}"}
                content = json.dumps(body).encode()
                head = f"POST /v1/completions HTTP/1.1\r\nhost: {place.netloc}\r\nconnection: close\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
                answer = await receive((place.hostname or "", place.port or 0), head.encode() + content, found)
                failed += not answer.startswith(b"HTTP/1.1 200")

        used, begun = processor_seconds(status.pid), time.perf_counter()
        await asyncio.gather(*map(keep_asking, range(streams)))
        took = time.perf_counter() - begun
        share = (processor_seconds(status.pid) - used) / took
        following.cancel()
    return {
        "events_per_second": len(found.read) / took,
        "front_processor_share": share,
        **quantiles("arrived", since_step(found.arrived, steps)),
        **quantiles("read", since_step(found.read, steps)),
        "failed": failed,
    }


async def measure_floor(streams: int, period_s: float, seconds: float) -> dict[str, float]:
    """A process that sends an event to each of `streams` connections every so often."""
    found, bursts = Arrivals(), int(seconds / period_s)
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryFile() as times:
        child = os.fork()
        if child == 0:
            _send_bursts(listener, streams, period_s, bursts, times.fileno())
            os._exit(0)
        await asyncio.gather(*(receive(listener.getsockname(), b"", found) for _ in range(streams)))
        os.waitpid(child, 0)
        times.seek(0)
        begun = [at for (at,) in struct.iter_unpack("d", times.read())]
    return quantiles("floor_arrived", since_step(found.arrived, begun)) | quantiles(
        "floor_read", since_step(found.read, begun)
    )


def _send_bursts(listener: socket.socket, streams: int, period_s: float, bursts: int, times: int) -> None:
    connections = [listener.accept()[0] for _ in range(streams)]
    event = b"f5\r\n" + b"data: " + _EVENT.ljust(237) + b"\n\n\r\n"
    for _ in range(bursts):
        time.sleep(period_s)
        os.write(times, struct.pack("d", time.time()))
        for connection in connections:
            connection.send(event)


def since_step(events: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Seconds from the newest step before each event, ascending."""
    delays, newest = [], 0
    for event in sorted(events):
        while newest + 1 < len(steps) and steps[newest + 1] <= event:
            newest += 1
        delays.append(event - steps[newest])
    return sorted(delays)


def quantiles(name: str, delays: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p50_ms": delays[len(delays) // 2] * 1e3, f"{name}_p95_ms": delays[int(len(delays) * 0.95)] * 1e3}


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens-per-second", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    period_s = given.streams / given.tokens_per_second
    found = asyncio.run(measure_floor(given.streams, period_s, given.seconds / 4))
    with tempfile.TemporaryDirectory(prefix="pc-") as folder:
        base = Path(folder)
        environment = fake_engine_environment(model_folder(base / "model"), base / "notes")
        environment["FAKE_ENGINE_STEP_S"] = str(period_s)
        arguments = ("--num-blocks", "4000", "--http", "127.0.0.1:0", "--run-dir", str(base / "run"))
        daemon = Daemon(*arguments, env={**os.environ, **environment, "PAGECHAT_DATA_DIR": str(base / "data")})
        try:
            daemon.until_answering(base / "run")
            found = asyncio.run(measure(base / "run", given.streams, given.seconds)) | found
        finally:
            end(daemon)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))
    print(this_machine().line())


if __name__ == "__main__":
    main()
