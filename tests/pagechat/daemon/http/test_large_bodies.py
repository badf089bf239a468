"""The largest legal body of every route, beside a stream: the loop is not held up by it.

A pause is told from a busy machine by the processor time that this process spent in it: another program's work is none
of it. The front runs in this process; who sends the bodies is another one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from engine.process.config import EngineConfig
from pagechat.client import AsyncEngineClient
from pagechat.daemon.errors import RequestError
from pagechat.daemon.heavy import Heavy
from pagechat.daemon.http.address import Address
from pagechat.daemon.http.bodies import MAX_CONTAINERS, MAX_STRINGS, check_counts
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.daemon.http.refusal import ApiError
from tests.daemons import running_front, until

MOST_S = 0.1
"""Of a pause in everybody's streams (issue 14)."""

_SEND = """
import http.client, sys
port, path, file = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=120)
connection.request("POST", path, open(file, "rb").read(), {"content-type": "application/json"})
response = connection.getresponse()
print(response.status, len(response.read()))
"""


class Pauses:
    """How long the loop was held up by this process."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        before, before_cpu = time.monotonic(), time.process_time()
        while True:
            await asyncio.sleep(0.005)
            now, now_cpu = time.monotonic(), time.process_time()
            self.longest = max(self.longest, min(now - before, now_cpu - before_cpu))
            before, before_cpu = now, now_cpu


@pytest.fixture
async def port(fake_engine: Path) -> AsyncIterator[int]:
    door = HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0)))
    async with running_front(EngineConfig(), http=door), await AsyncEngineClient.connect() as client:
        await client.snapshot()
        port = int(door.url.rpartition(":")[2])
        async with httpx2.AsyncClient(base_url=door.url) as http:

            async def answers() -> bool:
                try:
                    return (await http.get("/health")).status_code == 200
                except httpx2.TransportError:
                    return False

            while not await answers():
                await asyncio.sleep(0.05)
        yield port


def chat(**more: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1} | more).encode()


TEXT = "lorem ipsum dolor sit amet, " * (4 * 2**20 // 28)
BODIES: dict[str, tuple[str, bytes, int]] = {
    "objects": ("/v1/chat/completions", b'{"messages":[' + b"{}," * 2_730_000 + b"{}]}", 400),
    "fewer objects": ("/v1/chat/completions", b'{"messages":[' + b"{}," * (MAX_CONTAINERS - 9) + b"{}]}", 400),
    "wrong parts": (
        "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": [{}] * 1000}] * 30}).encode(),
        400,
    ),
    "right parts": (
        "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1000}] * 30}).encode(),
        400,  # more than the context
    ),
    "zeros": ("/v1/completions", b'{"prompt":[' + b"0," * (4 * 2**20 - 10) + b"0]}", 400),
    "a million ids": ("/v1/completions", b'{"prompt":[' + b"3," * (2**20) + b"3]}", 400),
    "a million wrong ids": ("/v1/completions", b'{"prompt":[' + b"-3," * (2**20) + b"3]}", 400),
    "prompts": ("/v1/completions", json.dumps({"prompt": [[3] * 4000] * 256}).encode(), 400),
    "wrong ids": ("/detokenize", b'{"tokens":[' + b"99999999," * 900_000 + b"0]}", 400),
    "detokenize": ("/detokenize", json.dumps({"tokens": [30] * 2**20}).encode(), 200),
    "tokenize": ("/tokenize", json.dumps({"prompt": TEXT[: 2**20]}).encode(), 200),
    "token strings": ("/tokenize", json.dumps({"prompt": TEXT[: 2**20], "return_token_strs": True}).encode(), 200),
    "a long chat": ("/v1/chat/completions", chat(messages=[{"role": "user", "content": TEXT[: 2**20]}]), 400),
    "a long chat of marks": ("/v1/chat/completions", chat(messages=[{"role": "user", "content": "<" * 2**21}]), 400),
    "biases": ("/v1/chat/completions", chat(logit_bias={str(i): 1 for i in range(600_000)}), 400),
    "fewer biases": ("/v1/chat/completions", chat(logit_bias={str(i): 1 for i in range(MAX_STRINGS // 2)}), 400),
    "unknown fields": ("/v1/chat/completions", chat(**{f"x{i}": 1 for i in range(100_000)}), 400),
    "stops": ("/v1/chat/completions", chat(stop=[""] * 100_000), 400),
    "a schema": ("/v1/chat/completions", chat(guided_json={"enum": [0] * 1_000_000}), 400),
    "an input": ("/v1/responses", b'{"input":[' + b"{}," * (MAX_CONTAINERS - 9) + b"{}]}", 400),
    "no JSON": ("/v1/chat/completions", b'{"messages":[' + b"[0],[" * 6000 + b"0 " * 4_000_000, 400),
    "escapes": ("/tokenize", b'{"prompt":"' + rb"\n" * 2_000_000 + b'"}', 400),
    "a fork": ("/v1/sessions/x/fork", b'{"target":"' + b"x" * 8_000_000 + b'"}', 400),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_large_body_holds_nobody_up(port: int, name: str, tmp_path: Path) -> None:
    path, body, status = BODIES[name]
    assert len(body) <= 8 * 2**20
    (tmp_path / "body").write_bytes(body)
    for attempt in range(3):
        pauses = Pauses()
        watching = asyncio.create_task(pauses.watch())
        await asyncio.sleep(0.05)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SEND, str(port), path, str(tmp_path / "body"), stdout=asyncio.subprocess.PIPE
        )
        said = (await process.communicate())[0].split()
        watching.cancel()
        if name != "escapes":
            assert int(said[0]) == status, said
        if pauses.longest < MOST_S:
            return
        print(f"attempt {attempt}: {pauses.longest:.3f} s")
    raise AssertionError(f"the loop was held up for {pauses.longest:.3f} s")


async def test_small_requests_do_not_wait_behind_large_ones(port: int, tmp_path: Path) -> None:
    body = json.dumps({"prompt": TEXT[: 2**20], "return_token_strs": True}).encode()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        json_type = {"content-type": "application/json"}
        large = [asyncio.create_task(http.post("/tokenize", content=body, headers=json_type)) for _ in range(4)]
        await asyncio.sleep(0.2)
        answer = await http.post("/v1/chat/completions", content=chat(), headers=json_type)
        assert answer.status_code == 200
        assert not all(task.done() for task in large), "the large ones were too small for this test"
        assert [(await task).status_code for task in large] == [200] * 4


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" + b"{}," * MAX_CONTAINERS + b"{}]", "objects and arrays"),
        (b"[" + b'"",' * MAX_STRINGS + b'""]', "strings"),
        (b"[" + b"0," * (2**20 + 2**18) + b"0]", "values"),
        (b'["' + rb"\\" + b'",' + b"{}," * MAX_CONTAINERS + b"{}]", "objects and arrays"),
    ],
)
def test_the_parts_of_a_body_are_bounded(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        check_counts(body)


@pytest.mark.parametrize(
    "text", ["{}," * 2_000_000, r"\"{}," * 1_000_000, r"\\{}," * 1_000_000, "[" * 4_000_000, '\\"' * 1_000_000]
)
def test_what_stands_in_a_string_is_no_part(text: str) -> None:
    check_counts(b'{"prompt":"' + text.encode() + b'","n":1}')


async def test_one_tenants_large_work_takes_turns_with_anothers() -> None:
    heavy, done = Heavy(threads=1, most_waiting=4), []

    def work(name: str) -> None:
        time.sleep(0.02)
        done.append(name)

    async def one(tenant: str, name: str) -> None:
        await heavy.run(tenant, work, name)

    first = [asyncio.create_task(one("alice", f"a{number}")) for number in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as caught:
        await heavy.run("alice", work, "one too many")
    assert caught.value.code == "busy"
    cancelled = asyncio.create_task(one("bob", "never"))
    second = [asyncio.create_task(one("bob", "b0"))]
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(*first, *second)
    assert done == ["a0", "a1", "b0", "a2", "a3", "a4"]
    await until(lambda: heavy._free == 1, "a free thread")
    heavy.close()
