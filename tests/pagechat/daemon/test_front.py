"""The front between real sockets and a fake engine process: answers, endings, and nobody harmed by anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine.blocks.observe.mirror import PoolMirror
from engine.process.config import EngineConfig
from engine.protocol import VERSION, Message, encode
from pagechat import rundir
from pagechat.client import AsyncEngineClient, DaemonGone, RequestFailed
from pagechat.daemon.front import Front
from pagechat.daemon.supervisor import Patience
from pagechat.protocol import (
    MAX_CLIENT_FRAME,
    Accepted,
    Chat,
    ChatMessage,
    ChatOptions,
    Delta,
    Failed,
    Finished,
    Rejected,
    Status,
    decode_front_message,
)
from tests.daemons import QUICK, notes, running_front, socket_files, until, user, whole

pytestmark = pytest.mark.usefixtures("fake_engine")

SLOW = "0.02"
"""Seconds of a step, where a test needs an answer that is still under way."""


@pytest.fixture
async def shared(shared_daemon: Path) -> AsyncIterator[AsyncEngineClient]:
    """A client of the daemon that several tests share."""
    async with await AsyncEngineClient.connect() as client:
        yield client
        await idle_pool(client)


@contextlib.asynccontextmanager
async def connected(**options: Any) -> Any:
    async with running_front(**options) as front, await AsyncEngineClient.connect() as client:
        yield front, client


def raw_client(**options: int) -> zmq.Socket[bytes]:
    """A peer that speaks frames, well-formed or not."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value)
    socket.connect(rundir.endpoint(rundir.run_dir(), "clients"))
    return socket


async def received(socket: zmq.Socket[bytes]) -> Message:
    await until(lambda: socket.poll(0), "answer")
    return decode_front_message(socket.recv())


async def first_delta(client: AsyncEngineClient, session: str, **options: Any) -> tuple[Any, str]:
    """A stream that has begun, and its request id."""
    request_id = f"request-of-{session}"
    stream = client.chat(user("a long story"), session=session, request_id=request_id, **options)
    while not isinstance(await anext(stream), Delta):
        pass
    return stream, request_id


async def rest(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def collect(stream: Any, events: list[Any]) -> None:
    """Keeps what came also when the stream ends by an error."""
    async for event in stream:
        events.append(event)


async def idle_pool(client: AsyncEngineClient) -> None:
    """The engine owns no block for anybody."""
    while (await client.snapshot()).sequences:
        await asyncio.sleep(0.01)


# -- an answer ---------------------------------------------------------------------------------


async def test_an_answer_is_accepted_streamed_and_finished(shared: AsyncEngineClient) -> None:
    events = [event async for event in shared.chat(user("Hello 🌶 wörld"), session="s")]
    accepted, *deltas, finished = events
    assert isinstance(accepted, Accepted)
    assert isinstance(finished, Finished)
    # the fake engine answers with the prompt's text tokens, then the stop token
    assert finished.text == "".join(delta.text for delta in deltas) == "user\nHello 🌶 wörld\nassistant\n"
    assert finished.finish_reason == "stop"
    assert finished.usage.prompt_tokens == accepted.prompt_tokens
    assert finished.usage.completion_tokens == deltas[-1].tokens + 1  # the stop token counts, and is no text
    assert finished.timing.ttft_s is not None
    assert 0 < finished.timing.ttft_s <= finished.timing.total_s


async def test_the_second_request_finds_the_firsts_blocks(shared: AsyncEngineClient) -> None:
    first = await whole(shared, "the same long question, word for word, " * 4)
    second = await whole(shared, "the same long question, word for word, " * 4)
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens >= 16


async def test_a_stop_string_ends_the_answer_before_it_and_the_engines_work(shared: AsyncEngineClient) -> None:
    finished = await whole(shared, "one two three four", session="long", stop=["three"])
    assert (finished.text, finished.finish_reason) == ("user\none two ", "stop")
    await until(lambda: "AbortRequest" in notes(), "abort")


async def test_max_tokens_ends_with_length_and_gives_out_what_was_held_back(shared: AsyncEngineClient) -> None:
    # "o" is held back as the beginning of the stop string when the last token comes
    finished = await whole(shared, "hello o", session="long", stop=["o nothing like it"], max_tokens=7)
    assert (finished.finish_reason, finished.usage.completion_tokens) == ("length", 7)
    assert finished.text == "user\nhello"[: len(finished.text)]
    assert len(finished.text) >= 7


async def test_an_answer_ends_with_length_where_the_context_ends(shared: AsyncEngineClient) -> None:
    finished = await whole(shared, "go on", session="long", max_tokens=100_000)
    # MAX_CONTEXT of the fake engine
    assert finished.usage.prompt_tokens + finished.usage.completion_tokens == 512
    assert finished.finish_reason == "length"


async def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(shared: AsyncEngineClient) -> None:
    with pytest.raises(RequestFailed, match=r"takes [\d,]+ tokens.*holds 512 tokens") as caught:
        await whole(shared, "word " * 2000, session="endless prompt")
    assert caught.value.code == "too_long"
    assert "AddRequest endless prompt" not in notes()


@pytest.mark.usefixtures("shared")
async def test_many_clients_at_once_each_get_their_own_answer() -> None:
    async def one(number: int) -> None:
        async with await AsyncEngineClient.connect() as client:
            finished = await whole(client, f"client number {number}", session=str(number))
            assert finished.text == f"user\nclient number {number}\nassistant\n"

    await asyncio.gather(*(one(number) for number in range(50)))


async def test_requests_wait_while_the_engine_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    async with connected() as (_, client):
        asking = asyncio.create_task(whole(client, "early"))
        # given an engine that loads: status tells how far it is
        while not (status := await client.status()).load or status.load.detail != "slowly":
            await asyncio.sleep(0.01)
        assert status.state == "loading"
        assert status.load.total == 10
        assert not asking.done()
        # then the answer comes when it has loaded
        assert (await asking).text.startswith("user\nearly")


# -- cancelling and going away -----------------------------------------------------------------


async def test_cancel_keeps_the_text_so_far_and_frees_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    async with connected() as (_, client):
        stream, request_id = await first_delta(client, "long")
        await client.cancel(request_id)
        *_, finished = await rest(stream)
        assert finished.finish_reason == "abort"
        assert finished.text.startswith("u")
        await until(lambda: "AbortRequest" in notes(), "abort")
        await idle_pool(client)


async def test_cancel_before_the_engine_is_ready_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    async with connected() as (_, client):
        stream = client.chat(user("early"), request_id="r")
        ending = asyncio.create_task(rest(stream))
        await client.status()  # the chat is on its way before it
        await client.cancel("r")
        (finished,) = await ending
        assert (finished.text, finished.finish_reason) == ("", "abort")


async def test_leaving_the_iteration_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    async with connected() as (_, client):
        stream, _ = await first_delta(client, "long")
        await stream.aclose()
        await until(lambda: "AbortRequest" in notes(), "abort")
        await idle_pool(client)


async def test_a_client_that_vanishes_costs_the_engine_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    script = (
        "from pagechat.client import EngineClient; from pagechat.protocol import ChatMessage\n"
        "question = [ChatMessage(role='user', content='x')]\n"
        "for event in EngineClient().chat(question, session='long'): print(event, flush=True)"
    )
    async with connected() as (_, client):
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        await child.stdout.readline()
        # when the client is killed in the middle of its answer
        child.kill()
        await child.wait()
        # then its request is aborted and its blocks are free
        await until(lambda: "AbortRequest" in notes(), "abort")
        await idle_pool(client)


async def test_a_client_that_does_not_read_loses_its_requests_and_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40
    async with connected(config=EngineConfig(num_blocks=count * 32), client_queue=100) as (_, client):
        # given a client that never reads, and far more answers than the sockets between can hold
        sleeper = raw_client(RCVHWM=1)
        for number in range(count):
            sleeper.send(encode(Chat(request_id=str(number), session="long", messages=user("go on and on"))))
        await until(lambda: "AbortRequest" in notes(), "abort")
        # then others are served meanwhile
        assert (await whole(client, "hi")).text.startswith("user\nhi")
        await idle_pool(client)
        # and when it reads at last, each request has a last word
        last: dict[str, Message] = {}
        while len(last) < count:
            message = await received(sleeper)
            if isinstance(message, Failed | Finished):
                last[message.request_id] = message
        assert any(isinstance(message, Failed) for message in last.values())
        sleeper.close(linger=0)


# -- what clients should not send --------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00garbage\xff",
        b"\x81" * 100_000,  # nested so deep that a careless decoder recurses to death
        msgspec.msgpack.encode({"type": "Unknown"}),
        msgspec.msgpack.encode({"type": "GetStatus"}),
        msgspec.msgpack.encode({"type": "Cancel", "request_id": 7}),
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"type": "AddRequest", "request_id": "x"}),
    ],
    ids=range(8),
)
async def test_a_bad_frame_is_rejected_and_harms_nobody(frame: bytes, shared: AsyncEngineClient) -> None:
    stream, _ = await first_delta(shared, "other")
    peer = raw_client()
    peer.send(frame)
    answer = await received(peer)
    assert isinstance(answer, Rejected)
    assert answer.code == "bad_request"
    *_, finished = await rest(stream)
    assert finished.finish_reason == "stop"
    peer.close(linger=0)


async def test_a_bad_chat_fails_as_the_request_it_names(shared: AsyncEngineClient) -> None:
    peer = raw_client()
    peer.send(msgspec.msgpack.encode({"type": "Chat", "request_id": "r", "session": "s", "messages": "none"}))
    assert await received(peer) == Failed(
        request_id="r", code="bad_request", message="Expected `array`, got `str` - at `$.messages`", param="messages"
    )
    peer.close(linger=0)


@pytest.mark.parametrize("extra", [{}, {"field_of_the_future": 1}])
async def test_another_version_is_told_so(extra: dict[str, int], shared: AsyncEngineClient) -> None:
    peer = raw_client()
    peer.send(msgspec.msgpack.encode({"type": "Hello", "version": VERSION + 1, "client": "new", **extra}))
    answer = await received(peer)
    assert isinstance(answer, Rejected)
    assert answer.code == "version_mismatch"
    peer.close(linger=0)


async def test_a_frame_beyond_the_limit_ends_that_connection_only(shared: AsyncEngineClient) -> None:
    peer = raw_client()
    peer.send(b"x" * (MAX_CLIENT_FRAME + 1))
    assert (await whole(shared, "hi")).text.startswith("user\nhi")
    peer.close(linger=0)


async def test_a_request_id_in_use_is_refused_and_the_first_request_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    async with running_front():
        peer, other = raw_client(), raw_client()
        chat = encode(Chat(request_id="same", session="s", messages=user("hello")))
        peer.send(chat)
        peer.send(chat)
        other.send(chat)  # another client's names are its own
        answers = [await received(peer)]
        while not isinstance(answers[-1], Finished):
            answers.append(await received(peer))
        assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["bad_request"]
        while not isinstance(last := await received(other), Finished):
            assert not isinstance(last, Failed)
        peer.close(linger=0)
        other.close(linger=0)


async def test_names_that_are_too_long_are_refused(shared: AsyncEngineClient) -> None:
    with pytest.raises(RequestFailed, match=r"length <= 256 - at `\$\.(session|request_id)`"):
        await whole(shared, "hi", session="s" * 257)


async def test_a_template_that_refuses_fails_that_request_only(fake_engine: Any) -> None:
    (fake_engine / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    async with connected() as (_, client):
        with pytest.raises(RequestFailed, match="no system role") as caught:
            await rest(client.chat([ChatMessage(role="system", content="x"), *user("y")]))
        assert caught.value.code == "bad_request"
        assert (await whole(client, "fine")).text == "fine"


# -- the engine's ends -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "words"),
    [
        ("die", r"signal 9 \(SIGKILL\), after 3 tokens of this answer"),
        ("raise", "RuntimeError: the step went wrong, after 3 tokens"),
    ],
)
async def test_an_engine_that_dies_fails_its_requests_and_is_replaced(session: str, words: str) -> None:
    async with connected() as (_, client):
        before = (await until_ready(client)).engine_pid
        events: list[Any] = []
        with pytest.raises(RequestFailed, match=words) as caught:
            await collect(client.chat(user("hello"), session=session), events)
        assert caught.value.code == "engine_died"
        # then what was streamed stays valid, and the next request gets a new engine
        assert "".join(event.text for event in events[1:]) == "user\n"
        assert (await whole(client, "again")).text.startswith("user\nagain")
        status = await client.status()
        assert status.engine_pid not in (before, None)
        assert (status.state, status.error) == ("ready", None)


async def test_what_was_held_back_is_given_out_when_the_engine_dies() -> None:
    async with connected() as (_, client):
        events: list[Any] = []
        stream = client.chat(user("x"), session="die", options=ChatOptions(stop=["user\nno"]))
        with pytest.raises(RequestFailed):
            await collect(stream, events)
        assert "".join(event.text for event in events[1:]) == "user\n"


async def test_an_engine_that_hangs_is_noticed_and_replaced() -> None:
    patience = Patience(hang_s=0.4, backoff_s=0.01, stop_s=1)
    async with connected(patience=patience) as (_, client):
        with pytest.raises(RequestFailed, match=r"did not answer for 0.4 s and was killed, after 3 tokens"):
            await whole(client, "hello", session="hang")
        assert (await whole(client, "again")).text.startswith("user\nagain")


async def test_a_busy_engine_is_not_taken_for_a_hung_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.1")
    async with connected(patience=Patience(hang_s=0.4)) as (_, client):
        assert (await whole(client, "hello")).finish_reason == "stop"


async def test_an_engine_that_cannot_load_is_an_error_that_everybody_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "fail")
    async with connected() as (_, client):
        # the request that waited, and one that comes later
        for _ in range(2):
            with pytest.raises(RequestFailed, match=r"no such model: \[bold\]nope") as caught:
                await whole(client, "hello")
            assert caught.value.code == "engine_failed"
        status = await client.status()
        assert status.state == "failed"
        assert status.error is not None
        assert "no such model" in status.error
        with pytest.raises(RequestFailed, match="no such model"):
            await client.snapshot()
        assert notes().count("start") == 1, "a model that is not there is not there the second time"


async def test_an_engine_that_ends_without_a_word_is_tried_again_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "exit")
    async with connected() as (_, client):
        with pytest.raises(RequestFailed, match="exit status 9: the machine has no memory left; 3 engines in a row"):
            await whole(client, "hello")
        assert notes().count("start") == QUICK.quick_failures


async def test_requests_that_kill_every_engine_do_not_end_the_service() -> None:
    async with connected() as (front, client):
        for number in range(2 * QUICK.quick_failures):
            await until_ready(client)
            with pytest.raises(RequestFailed) as caught:
                await whole(client, f"hello {number}", session="die")
            assert caught.value.code == "engine_died"
        await until(lambda: front.supervisor.state == "ready", "another engine")
        assert (await whole(client, "hello")).text.startswith("user\nhello")
        assert (await client.status()).error is None


async def test_a_request_that_saw_two_engines_end_is_not_given_to_a_third() -> None:
    async with connected() as (front, client):
        for _ in range(2):
            await until_ready(client)
            with pytest.raises(RequestFailed) as caught:
                await whole(client, "hello", session="die")
            assert caught.value.code == "engine_died"
        await until_ready(client)
        with pytest.raises(RequestFailed, match="2 engines ended while they computed this request") as caught:
            await whole(client, "hello", session="die again")
        assert caught.value.code == "bad_request"
        assert front.supervisor.state == "ready"
        assert (await whole(client, "another")).finish_reason == "stop"


async def test_while_engines_keep_ending_it_is_told_why_since_when_and_when_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patience = Patience(backoff_s=0.01, most_backoff_s=2.0, stop_s=1)
    async with connected(patience=patience) as (front, client):
        await until_ready(client)
        monkeypatch.setenv("FAKE_ENGINE_LOAD", "exit")
        with pytest.raises(RequestFailed):
            await whole(client, "hello", session="die")
        # one that waits is not kept waiting for ever
        with pytest.raises(
            RequestFailed, match=r"restarting for \d+ s; .* the next engine is started in \d s"
        ) as caught:
            await whole(client, "hello")
        assert caught.value.code == "engine_failed"
        await until(lambda: (front.supervisor.next_try_s or 0) > 1, "a long pause")
        status = await client.status()
        assert (status.state, status.load) == ("restarting", None)
        assert status.error is not None
        assert "the machine has no memory left" in status.error
        assert status.next_try_s is not None
        assert 0 < status.next_try_s <= 2
        assert status.state_s > 0
        # then the trouble is over, and nobody had to restart anything
        monkeypatch.delenv("FAKE_ENGINE_LOAD")
        await until(lambda: front.supervisor.state == "ready", "another engine")
        assert (await whole(client, "again")).finish_reason == "stop"
        assert (await client.status()).next_try_s is None


@pytest.mark.parametrize(("how", "words"), [("version", "protocol version"), ("text", "no tokenizer.json")])
async def test_an_engine_that_does_not_fit_the_front_is_refused(
    how: str, words: str, monkeypatch: pytest.MonkeyPatch, fake_engine: Any
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", how)
    if how == "text":
        (fake_engine / "tokenizer.json").unlink()
    async with connected() as (_, client):
        with pytest.raises(RequestFailed, match=words):
            await whole(client, "hello")


async def test_a_command_that_does_not_exist_is_a_failed_engine() -> None:
    front = Front(rundir.run_dir(), EngineConfig(), engine_command=["/nonexistent/engine"])
    running = asyncio.create_task(front.run())
    await until(lambda: front.supervisor.state == "failed", "failure")
    assert "/nonexistent/engine" in (front.supervisor.error or "")
    front.stop_asked.set()
    await running


# -- status and telemetry ----------------------------------------------------------------------


async def until_ready(client: AsyncEngineClient) -> Status:
    while (status := await client.status()).state != "ready" or status.pool is None:
        await asyncio.sleep(0.01)
    return status


async def test_status_tells_of_model_pool_and_throughput() -> None:
    async with connected() as (_, client):
        await whole(client, "hello " * 20)
        await client.snapshot()
        status = await until_ready(client)
    assert status.model is not None
    assert status.model.name == "smollm2"
    assert status.pid == os.getpid()
    pool = status.pool
    assert pool is not None
    assert (pool.num_blocks, pool.block_size, pool.active, pool.shared) == (64, 16, 0, 0)
    assert pool.free + pool.cached == 64
    assert pool.cached > 0
    assert status.scheduler is not None
    assert (status.scheduler.running, status.scheduler.waiting) == (0, 0)
    assert status.throughput.prompt_tokens_per_s > 0
    assert status.throughput.generated_tokens_per_s > 0


async def test_a_mirror_that_follows_telemetry_is_the_pool_also_after_a_new_engine() -> None:
    async with connected() as (_, client):
        await until_ready(client)
        reports = client.telemetry()
        mirror = PoolMirror.from_snapshot(await client.snapshot())
        resynced = 0

        async def follow() -> None:
            nonlocal mirror, resynced
            from engine.blocks.observe.mirror import MirrorGap

            async for report in reports:
                try:
                    mirror.apply(report)
                except MirrorGap:
                    resynced += 1
                    mirror = PoolMirror.from_snapshot(await client.snapshot())

        following = asyncio.create_task(follow())
        for text in ("some text " * 9, "other text " * 9):
            await whole(client, text)
        with pytest.raises(RequestFailed):
            await whole(client, "end it", session="die")
        # the new engine counts from 0 again: a mirror must not take its reports for old ones
        await whole(client, "after the new engine started " * 5)
        snapshot = await client.snapshot()
        await until(lambda: mirror.next_event == snapshot.next_event and mirror.step == snapshot.step, "mirror in step")
        assert sorted(mirror.cached) == sorted(snapshot.cached)
        assert resynced >= 1
        following.cancel()


async def test_a_subscriber_that_does_not_read_blocks_nothing() -> None:
    async with connected() as (_, client):
        await until_ready(client)
        lazy = zmq.Context.instance().socket(zmq.SUB)
        lazy.setsockopt(zmq.RCVHWM, 1)
        lazy.setsockopt(zmq.SUBSCRIBE, b"")
        lazy.connect(client.welcome.telemetry)
        for _ in range(20):
            await whole(client, "go on", session="long", max_tokens=200)
        lazy.close(linger=0)


# -- the end -----------------------------------------------------------------------------------


async def test_stopping_gives_everybody_the_text_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    async with running_front() as front:
        client = await AsyncEngineClient.connect()
        stream, _ = await first_delta(client, "long")
        engine = front.supervisor.engine_pid
        front.stop_asked.set()
        *_, finished = await rest(stream)
        assert finished.finish_reason == "abort"
        assert finished.text.startswith("u")
        with pytest.raises((RequestFailed, DaemonGone)):
            await whole(client, "too late")
        await client.close()
    assert engine is not None
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)
    assert socket_files() == set()


async def test_stopping_while_the_engine_loads_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    async with running_front() as front:
        client = await AsyncEngineClient.connect()
        waiting = asyncio.create_task(whole(client, "early"))
        await until(lambda: front.supervisor.engine_pid, "engine")
        front.stop_asked.set()
        with pytest.raises(RequestFailed) as caught:
            await waiting
        assert caught.value.code == "shutting_down"
        await client.close()
    assert "Shutdown" not in notes()


async def test_an_engine_that_does_not_end_is_killed() -> None:
    async with running_front(patience=Patience(stop_s=0.3)) as front, await AsyncEngineClient.connect() as client:
        stream, _ = await first_delta(client, "hang")
        engine = front.supervisor.engine_pid
        front.stop_asked.set()
        await rest(stream)
    assert engine is not None
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)


async def test_draining_lets_answers_end_and_begins_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    async with connected() as (front, client):
        stream, _ = await first_delta(client, "short")
        draining = asyncio.create_task(front.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(RequestFailed) as caught:
            await whole(client, "new")
        assert caught.value.code == "shutting_down"
        *_, finished = await rest(stream)
        assert finished.finish_reason == "stop"
        await draining


async def test_an_engine_that_dies_while_draining_fails_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", SLOW)
    async with connected() as (front, client):
        stream, _ = await first_delta(client, "long")
        draining = asyncio.create_task(front.drain(10))
        await asyncio.sleep(0)
        os.kill(front.supervisor.engine_pid, signal.SIGKILL)
        with pytest.raises(RequestFailed) as caught:
            await rest(stream)
        assert caught.value.code == "engine_died"
        await draining


async def test_the_log_of_the_engine_does_not_grow_for_ever() -> None:
    log = rundir.run_dir() / "engine.log"
    log.write_bytes(b"old line\n" * 200_000)
    async with connected() as (_, client):
        await until_ready(client)
    assert log.stat().st_size < 100_000
