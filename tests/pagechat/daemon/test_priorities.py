"""Whose turn it is, as clients say it: with the request, and later. tests/engine has the order itself."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import msgspec
import pytest

from engine.process.config import EngineConfig
from engine.protocol import SessionInfo
from pagechat.client import AsyncEngineClient, EngineClient, RequestFailed
from pagechat.commands.status import MOST_REQUESTS, as_text
from pagechat.protocol import Finished, RequestStatus, Status, ThroughputStatus
from tests.daemons import notes, running_front, until, user

pytestmark = pytest.mark.usefixtures("fake_engine")


EMPTY = Status(
    ticket=0,
    state="loading",
    pid=1,
    daemon_version="0",
    uptime_s=0,
    model=None,
    device=None,
    load=None,
    error=None,
    engine_pid=None,
    pool=None,
    scheduler=None,
    throughput=ThroughputStatus(prompt_tokens_per_s=0, generated_tokens_per_s=0),
)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngineClient]:
    """Of an engine that answers one request at a time."""
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.005")
    async with running_front(EngineConfig(max_running=1)), await AsyncEngineClient.connect() as client:
        yield client


async def infos(client: AsyncEngineClient) -> dict[str, SessionInfo]:
    return {info.session: info for info in await client.sessions()}


class Questions:
    """Requests by their names, which are those of their sessions too, and the ends in their order."""

    def __init__(self, client: AsyncEngineClient) -> None:
        self._client = client
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.ends: list[str] = []

    async def ask(self, name: str, priority: int = 0) -> None:
        """Returns when the engine has it."""
        self._asking[name] = asyncio.create_task(self._ask(name, priority))
        while name not in await infos(self._client):
            await asyncio.sleep(0.005)

    async def _ask(self, name: str, priority: int) -> None:
        chat = self._client.chat(user("hello there"), session=name, request_id=name, priority=priority)
        async with contextlib.aclosing(chat):
            async for event in chat:
                if isinstance(event, Finished):
                    self.ends.append(name)

    async def all(self, *names: str) -> None:
        await asyncio.gather(*(self._asking[name] for name in names))


async def test_requests_are_served_by_priority_which_can_be_changed(client: AsyncEngineClient) -> None:
    questions = Questions(client)
    await questions.ask("long one", priority=-1)  # holds the engine until it is cancelled
    for name, priority in [("a", 0), ("b", 0), ("batch", 9), ("c", 0)]:
        await questions.ask(name, priority)
    assert {name: info.priority for name, info in (await infos(client)).items()} == {
        "long one": -1,
        "a": 0,
        "b": 0,
        "batch": 9,
        "c": 0,
    }
    await client.set_priority("c", -1)
    await client.set_priority("nobody", -1)
    assert (await infos(client))["c"].priority == -1
    await client.cancel("long one")
    await questions.all("a", "b", "batch", "c", "long one")
    assert questions.ends == ["long one", "c", "a", "b", "batch"]


async def test_status_tells_each_requests_priority_in_the_order_they_are_served(client: AsyncEngineClient) -> None:
    questions = Questions(client)
    await questions.ask("long one", priority=-1)
    await questions.ask("later", priority=9)
    await questions.ask("[b]\nsoon")

    async def told() -> list[tuple[str, str, int]]:
        return [(one.session, one.state, one.priority) for one in (await client.status()).requests]

    waiting = [("[b]\nsoon", "waiting", 0), ("later", "waiting", 9)]
    while await told() != [("long one", "running", -1), *waiting]:
        await asyncio.sleep(0.005)
    text = as_text(await client.status())
    assert re.search(r"^long one +running +-1 +[1-9]\d* +[1-9]\d* +0 s$", text, re.MULTILINE)
    assert re.search(r"^\[b\] soon +waiting +0 +[1-9]\d* +0 +0 s$", text, re.MULTILINE)
    await client.set_priority("later", -2)  # takes the place of the one that runs
    while await told() != [("later", "running", -2), ("long one", "waiting", -1), waiting[0]]:
        await asyncio.sleep(0.001)
    await client.cancel("long one")
    await questions.all("long one", "later", "[b]\nsoon")
    assert await told() == []


async def test_a_turn_that_waits_has_none_of_the_blocks_that_its_session_keeps(client: AsyncEngineClient) -> None:
    async for _ in client.chat(user("hello"), session="kept", keep=True):
        pass
    questions = Questions(client)
    await questions.ask("long one")
    waits = client.chat(user("hello"), session="kept", keep=True, request_id="waits")
    asking = asyncio.ensure_future(anext(waits))
    while (await infos(client))["kept"].state != "waiting":
        await asyncio.sleep(0.005)
    assert [(one.session, one.state) for one in (await client.status()).requests] == [
        ("long one", "running"),
        ("kept", "waiting"),
    ]
    await client.cancel("long one")
    await questions.all("long one")
    await asking
    async for _ in waits:
        pass


async def test_of_many_requests_people_are_shown_the_next_ones() -> None:
    one = RequestStatus(
        session="s", tenant="alice", state="waiting", priority=0, prompt_tokens=0, generated_tokens=0, age_s=0
    )
    text = as_text(msgspec.structs.replace(EMPTY, requests=[one] * (MOST_REQUESTS + 3)))
    assert text.count("alice") == MOST_REQUESTS
    assert text.endswith("... and 3 more, which --json tells")


async def test_what_runs_is_put_back_by_its_priority(client: AsyncEngineClient) -> None:
    questions = Questions(client)
    await questions.ask("long one")
    await questions.ask("a")
    await client.set_priority("long one", 1)
    await questions.all("a")
    assert questions.ends == ["a"]
    assert (await infos(client))["long one"].state in ("running", "waiting")
    await client.cancel("long one")
    await questions.all("long one")


async def test_a_priority_set_before_the_engine_is_there_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    async with running_front(), await AsyncEngineClient.connect() as client:
        stream = client.chat(user("hello"), session="long one", request_id="early")
        first = asyncio.create_task(anext(stream))
        await client.status()  # the chat is on its way before it
        await client.set_priority("early", 3)
        await first
        assert (await infos(client))["long one"].priority == 3
        await stream.aclose()
        await until(lambda: any(note.startswith("AbortRequest") for note in notes()), "abort")


async def test_a_number_that_is_none_is_refused_where_it_is_said(client: AsyncEngineClient) -> None:
    with pytest.raises(RequestFailed, match="priority"):
        await client.set_priority("any", 2**31)


@pytest.mark.usefixtures("shared_daemon")
def test_the_client_without_a_loop_says_it_too() -> None:
    with EngineClient.connect() as client:
        events = client.chat(user("hello"), session="long one", request_id="r", priority=4)
        next(events)
        assert [info.priority for info in client.sessions() if info.session == "long one"] == [4]
        client.set_priority("r", 5)
        assert [info.priority for info in client.sessions() if info.session == "long one"] == [5]
