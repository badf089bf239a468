"""How much is let in: queue limits, in whole requests, and what is said when the model is not there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from engine.process.config import EngineConfig
from pagechat.client import AsyncEngineClient
from pagechat.daemon.front import Front
from pagechat.daemon.http.address import Address
from pagechat.daemon.http.admission import Admission, Limits
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.daemon.http.keys import ANYBODY, Key
from pagechat.daemon.http.refusal import ApiError
from tests.daemons import notes, running_front, until, whole

BOB = Key(name="bob", sha256="", salt="", created=0, max_concurrent=2)


def test_a_request_is_let_in_whole_or_not_at_all() -> None:
    # vLLM pull 53936: two n=3 at a limit of 4
    admission = Admission(Limits(waiting=4))
    admission.enter(ANYBODY, 3)
    with pytest.raises(ApiError, match="4 is the limit") as caught:
        admission.enter(ANYBODY, 3)
    assert (caught.value.status, caught.value.code) == (429, "queue_requests")
    assert admission.waiting == 3
    admission.enter(ANYBODY, 1)


def test_what_has_begun_waits_no_longer() -> None:
    admission = Admission(Limits(waiting=1, waiting_tokens=10))
    ticket = admission.enter(ANYBODY, 1)
    ticket.has_prompt(10)
    ticket.began()
    other = admission.enter(ANYBODY, 1)
    other.has_prompt(6)
    with pytest.raises(ApiError, match="has 5") as caught:
        other.has_prompt(5)
    assert (caught.value.status, caught.value.code) == (429, "queue_tokens")
    for one in (ticket, other, other):
        one.close()
    assert (admission.waiting, admission.waiting_tokens) == (0, 0)


def test_what_could_never_be_let_in_is_not_told_to_wait() -> None:
    admission = Admission(Limits(waiting=4, waiting_tokens=10))
    for attempt in (
        lambda: admission.enter(BOB, 3),
        lambda: admission.enter(ANYBODY, 5),
        lambda: admission.enter(ANYBODY, 1).has_prompt(11),
    ):
        with pytest.raises(ApiError, match="no time will change that") as caught:
            attempt()
        assert caught.value.status == 400


def test_a_keys_answers_are_counted_until_they_end() -> None:
    reasons: list[str] = []
    admission = Admission(Limits(), reasons.append)
    first = admission.enter(BOB, 2)
    first.began()
    with pytest.raises(ApiError) as caught:
        admission.enter(BOB, 1)
    assert caught.value.code == "key_concurrency"
    assert caught.value.headers["retry-after"]
    first.close()
    admission.enter(BOB, 2)
    assert reasons == ["key_concurrency"]


@asynccontextmanager
async def door(limits: Limits | None = None, **options: object) -> AsyncIterator[tuple[Front, httpx2.AsyncClient]]:
    opened = HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0), limits=limits or Limits()))
    client = httpx2.AsyncClient(base_url=opened.url, timeout=30)
    async with running_front(http=opened, **options) as front, client as http:  # type: ignore[arg-type]
        yield front, http


def requests() -> int:
    """That the engine was given."""
    return sum(note.startswith("AddRequest") for note in notes())


@pytest.mark.usefixtures("fake_engine")
async def test_a_full_queue_says_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.01")
    body = {"prompt": "a long story " * 10, "max_tokens": 60}
    async with door(Limits(waiting=2), config=EngineConfig(max_running=1)) as (front, http):
        await until(lambda: front.supervisor.state == "ready", "engine")
        under_way = [asyncio.create_task(http.post("/v1/completions", json=body))]
        await until(lambda: requests() == 1, "the one that runs")
        while (await http.get("/v1/pool")).json()["throughput"]["generated_tokens_per_s"] == 0:
            await asyncio.sleep(0.01)
        under_way += [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(2)]
        await until(lambda: requests() == 3, "two that wait")
        assert (await http.get("/ready")).status_code == 503
        refused = await http.post("/v1/completions", json=body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert {response.status_code for response in await asyncio.gather(*under_way)} == {200}
        assert (await http.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.usefixtures("fake_engine")
async def test_a_model_that_is_not_ready_is_503_with_a_word_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    async with door() as (front, http):
        for path in ("/health", "/ready", "/v1/models"):
            response = await http.get(path)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "loading"
            assert int(response.headers["retry-after"]) > 0
        assert (await http.post("/v1/completions", json={"prompt": "x"})).status_code == 503
        assert (await http.get("/v1/pool")).json()["state"] == "loading"
        await until(lambda: front.supervisor.state == "ready", "engine")
        assert (await http.get("/health")).status_code == 200


@pytest.mark.usefixtures("fake_engine")
async def test_health_flips_when_the_engine_is_killed_and_again_when_another_is_there() -> None:
    async with door() as (front, http):
        await until(lambda: front.supervisor.state == "ready", "engine")
        assert (await http.get("/health")).status_code == 200
        assert front.supervisor.engine_pid is not None
        os.kill(front.supervisor.engine_pid, signal.SIGKILL)
        await until(lambda: front.supervisor.state != "ready", "death")
        health = await http.get("/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "restarting")
        assert "SIGKILL" in health.json()["error"]["message"]
        await until(lambda: front.supervisor.state == "ready", "another engine")
        assert (await http.get("/health")).status_code == 200


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_under_an_answer_is_an_error_and_not_an_end(stream: bool) -> None:
    async with door() as (front, http):
        await until(lambda: front.supervisor.state == "ready", "engine")
        body = {"prompt": "one two three four five six", "session": "die", "stream": stream}
        response = await http.post("/v1/completions", json=body)
        if stream:  # the error is the last event, and no [DONE] follows it
            assert response.status_code == 200
            last = response.text.strip().split("\n\n")[-1]
            assert last.startswith('data: {"error":')
        else:
            assert response.status_code == 503
        assert '"engine_died"' in response.text
        await until(lambda: front.supervisor.state == "ready", "another engine")
        assert (await http.post("/v1/completions", json={"prompt": "one"})).status_code == 200


@pytest.mark.usefixtures("fake_engine")
async def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    # vLLM issue 39734: the scheduler retried for ever
    async with door(config=EngineConfig(num_blocks=4)) as (front, http):
        await until(lambda: front.supervisor.state == "ready", "engine")
        for stream in (False, True):
            response = await http.post("/v1/completions", json={"prompt": "word " * 60, "stream": stream})
            assert response.status_code == 400, response.text
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert "64" in response.json()["error"]["message"]


@pytest.mark.usefixtures("fake_engine")
async def test_a_daemon_that_stops_tells_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.01")
    async with door() as (front, http):
        await until(lambda: front.supervisor.state == "ready", "engine")
        body = {"prompt": "a long story " * 10, "max_tokens": 200}
        whole = asyncio.create_task(http.post("/v1/completions", json=body))
        streamed = asyncio.create_task(http.post("/v1/completions", json={**body, "stream": True}))
        await until(lambda: requests() == 2, "both")
        front.stop_asked.set()
        assert (await whole).status_code == 503
        response = await streamed
        assert response.status_code == 503 or "shutting_down" in response.text


@pytest.mark.usefixtures("fake_engine")
async def test_a_host_of_another_name_is_turned_away() -> None:
    # DNS rebinding: a page of evil.example whose name was made to point here
    async with door() as (front, http):
        await until(lambda: front.supervisor.state == "ready", "engine")
        for host in ("evil.example", "evil.example:8008", "localhost.evil.example", "127.0.0.1.evil.example", "", ":1"):
            assert (await http.get("/v1/models", headers={"host": host})).status_code == 403, host
        for host in ("localhost:1", "LocalHost", "127.0.0.1", "[::1]", "[::1]:8008"):
            assert (await http.get("/v1/models", headers={"host": host})).status_code == 200, host
        preflight = await http.options("/v1/models", headers={"origin": "http://evil.example"})
        assert not any(name.startswith("access-control") for name in preflight.headers)


@pytest.mark.usefixtures("fake_engine")
async def test_a_door_that_cannot_be_opened_leaves_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: HttpDoor, service: object) -> None:
        raise ImportError("no web framework here")

    monkeypatch.setattr(HttpDoor, "_load", broken)
    async with door() as (_, _), await AsyncEngineClient.connect() as client:
        assert (await whole(client, "hello")).text
        status = await client.status()
    assert (status.http, status.http_problem) == (None, "it cannot be served; the daemon's log says why")
