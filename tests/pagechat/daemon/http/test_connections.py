"""Clients that open connections and say nothing, say half of something, or read nothing: nobody else notices them."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import pytest

from engine.process.config import EngineConfig
from pagechat.client import AsyncEngineClient
from pagechat.daemon.front import Front
from pagechat.daemon.http import burst, server
from pagechat.daemon.http.address import Address
from pagechat.daemon.http.connections import Connections, Patience, raise_file_limit
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.seldom import SeldomFilter
from tests.daemons import running_front, until

QUICK = Patience(request_s=0.5, body_s=0.5, reading_s=1.0)
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def listening(
    monkeypatch: pytest.MonkeyPatch, *, most: int | None = None, patience: Patience = QUICK, context: int = 512
) -> AsyncIterator[tuple[Front, int]]:
    monkeypatch.setattr(server, "Connections", partial(Connections, most=most, patience=patience))
    door = HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0)))
    async with (
        running_front(EngineConfig(max_context=context, num_blocks=400), http=door) as front,
        await AsyncEngineClient.connect() as client,
    ):
        await client.snapshot()
        port = int(door.url.rpartition(":")[2])
        while await health(port) != 200:
            await asyncio.sleep(0.05)
        yield front, port


async def health(port: int) -> int:
    async with httpx2.AsyncClient() as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/health", timeout=5)).status_code
        except httpx2.HTTPError:
            return 0


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(8):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.usefixtures("fake_engine")
async def test_silent_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(monkeypatch, most=20, patience=Patience()) as (_, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        assert await health(port) == 200
        assert await closed(held[0][0]), "the one that waited longest made room"
        for _, writer in held:
            writer.close()


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(
    "said",
    [
        b"",
        HEAD[:20],
        HEAD,
        HEAD + b"content-length: 100\r\n\r\n",
        HEAD + b"content-length: 100\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" + HEAD,
    ],
)
async def test_a_request_that_is_never_finished_is_ended(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    async with listening(monkeypatch) as (front, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await closed(reader)
        writer.close()
        assert not len(front.answering.requests)


@pytest.mark.usefixtures("fake_engine")
async def test_bytes_one_by_one_do_not_make_a_request_young_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(monkeypatch) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def drip() -> None:
            for byte in HEAD * 9:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        assert await closed(reader)
        dripping.cancel()
        writer.close()


@pytest.mark.usefixtures("fake_engine")
async def test_a_request_that_takes_long_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.05")
    async with listening(monkeypatch) as (_, port), httpx2.AsyncClient(timeout=30) as http:
        body = {"prompt": "one two three four", "max_tokens": 60, "ignore_eos": True}
        answer = await http.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 60, "3 s at least, where patience is half a second"


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize("bound", ["time", "bytes"])
async def test_a_client_that_reads_nothing_is_let_go_with_its_blocks(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    patience = QUICK if bound == "time" else Patience()
    if bound == "bytes":
        monkeypatch.setattr(burst, "MOST_UNREAD", 2**16)
    async with listening(monkeypatch, patience=patience, context=100_000) as (front, port):
        body = json.dumps(
            {"prompt": ["x"] * 8, "n": 8, "max_tokens": 700, "ignore_eos": True, "stream": True, "logprobs": 20}
        ).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        sock = writer.get_extra_info("socket")
        sock.setsockopt(1, 8, 4096)  # SO_RCVBUF
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: len(front.answering.requests), "the request")
        await until(lambda: not len(front.answering.requests), "its end")
        async with await AsyncEngineClient.connect() as client:
            while (await client.snapshot()).sequences:
                await asyncio.sleep(0.01)
        assert await health(port) == 200
        writer.close()


@pytest.mark.usefixtures("fake_engine")
async def test_a_body_in_chunks_of_one_byte_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(monkeypatch, patience=Patience()) as (_, port):
        pauses: list[float] = []

        async def watch() -> None:
            loop = asyncio.get_running_loop()
            while True:
                before = loop.time()
                await asyncio.sleep(0.005)
                pauses.append(loop.time() - before)

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        watching = asyncio.create_task(watch())
        writer.write(b"1\r\n \r\n" * 40_000)
        await writer.drain()
        await asyncio.sleep(0.5)
        watching.cancel()
        assert sorted(pauses)[-3] < 0.25, "a machine may be busy for once"
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert b"200 OK" in await reader.readline()
        writer.close()


class One:
    def __init__(self, address: str = "10.0.0.1", waiting: bool = True) -> None:
        self.address, self.waiting, self.late, self.dropped = address, waiting, False, False

    def overdue(self, now: float, patience: Patience) -> bool:
        return self.late

    def drop(self) -> None:
        self.dropped = True


async def test_one_address_does_not_take_the_places_of_the_others() -> None:
    places = Connections(most=10, most_of_address=4)
    answered = [One(waiting=False) for _ in range(4)]
    assert all(places.enter(one) for one in answered)
    assert not places.enter(One()), "this address has its share"
    assert places.enter(One("10.0.0.2"))
    answered[2].waiting = True
    assert places.enter(One())
    assert [one.dropped for one in answered] == [False, False, True, False]


async def test_who_is_answered_makes_no_room() -> None:
    places = Connections(most=3)
    busy, first, second = One("127.0.0.1", waiting=False), One("127.0.0.1"), One("::1")
    assert all(places.enter(one) for one in (busy, first, second))
    places.waits(first)  # answered just now
    assert places.enter(One("127.0.0.1"))
    assert (busy.dropped, first.dropped, second.dropped) == (False, False, True)
    for one in (busy, first):
        places.leave(one)
        places.leave(one)
    assert len(places) == 1


def test_a_daemon_may_open_as_many_files_as_the_system_lets_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_others_log_of_connections_fills_no_disk() -> None:
    now = 0.0
    told = SeldomFilter(10, lambda: now)

    def passes(words: str) -> bool:
        return told.filter(logging.makeLogRecord({"msg": words}))

    assert passes("socket.accept() out of system resource\nsocket: 1")
    assert not any(passes(f"socket.accept() out of system resource\nsocket: {n}") for n in range(1000))
    assert passes("Invalid HTTP request received.")
    now = 11.0
    assert passes("socket.accept() out of system resource\nsocket: 2")
