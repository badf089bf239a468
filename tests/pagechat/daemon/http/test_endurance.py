"""Many clients at once, and many requests one after the other: everything ends, nothing stays.

The longer run: PAGECHAT_ENDURANCE_REQUESTS=10000 python -m pytest tests/pagechat/daemon/http/test_endurance.py
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx2
import pytest

from tests.pagechat.daemon.http.conftest import Served

CLIENTS = 100
REQUESTS = int(os.environ.get("PAGECHAT_ENDURANCE_REQUESTS", "200"))
GROWTH_MIB = 8
"""Of the front's memory, once caches and pools have their size."""


def anonymous_mib(pid: int) -> float:
    """RssAnon and VmSwap: a leak may be swapped out (ollama issue 18106)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) for name in ("RssAnon", "VmSwap")) / 1024


async def stream(http: httpx2.AsyncClient, number: int) -> tuple[str, str]:
    """(the deltas put together, what they should be)."""
    prompt = f"client {number} says 🌶 and 漢字 " * (1 + number % 4)
    text, done = "", False
    body = {"prompt": prompt, "stream": True, "max_tokens": 400}
    async with http.stream("POST", "/v1/completions", json=body, timeout=120) as response:
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line:
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert done
    return text, prompt


async def test_a_hundred_clients_stream_at_once(served: Served, idle: None) -> None:
    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(base_url=served.url, limits=limits) as http:
        for text, expected in await asyncio.gather(*(stream(http, number) for number in range(CLIENTS))):
            assert text == expected
    # and the fixture waits until no sequence owns a block


@pytest.mark.timeout(60 + REQUESTS // 10)
async def test_the_fronts_memory_stays_as_it_is(served: Served, idle: None) -> None:
    async with httpx2.AsyncClient(base_url=served.url, timeout=60) as http:

        async def some(count: int) -> None:
            for start in range(0, count, 16):
                body = {"max_tokens": 2}
                asked = (
                    http.post("/v1/completions", json=body | {"prompt": f"short {number}"})
                    for number in range(start, min(count, start + 16))
                )
                assert {response.status_code for response in await asyncio.gather(*asked)} == {200}

        await some(REQUESTS // 2)
        before = anonymous_mib(served.daemon.process.pid)
        await some(REQUESTS)
        assert anonymous_mib(served.daemon.process.pid) - before < GROWTH_MIB
