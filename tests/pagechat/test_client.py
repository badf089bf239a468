"""The one way into a daemon: what it promises a caller, above all that it never hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from engine.protocol import VERSION
from pagechat import rundir
from pagechat.client import AsyncEngineClient, DaemonGone, EngineClient, NoDaemon, RequestFailed
from pagechat.protocol import (
    MAX_CLIENT_FRAME,
    Accepted,
    Chat,
    ChatMessage,
    ChatOptions,
    Delta,
    Finished,
    decode_client_message,
)
from pagechat.rundir import DaemonInfo, DaemonLock
from tests.daemons import ROOT, running_front, serving, user, wait_until

pytestmark = pytest.mark.usefixtures("fake_engine")


async def all_of(stream: Any) -> list[Any]:
    return [item async for item in stream]


# -- connecting ----------------------------------------------------------------------------------


async def test_without_a_daemon_there_is_none_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(NoDaemon, match="no daemon runs"):
        await AsyncEngineClient.connect()
    assert time.monotonic() - started < 1


async def test_a_daemon_that_does_not_answer_is_none_after_the_timeout() -> None:
    lock = DaemonLock(rundir.run_dir(), DaemonInfo(pid=0, version="", started=0))
    with pytest.raises(NoDaemon, match=r"did not answer within 0\.2 s"):
        await AsyncEngineClient.connect(timeout=0.2)
    lock.release()


async def test_a_daemon_that_is_just_starting_is_waited_for() -> None:
    lock = DaemonLock(rundir.run_dir(), DaemonInfo(pid=0, version="", started=0))
    connecting = asyncio.create_task(AsyncEngineClient.connect(timeout=10))
    await asyncio.sleep(0.1)
    lock.release()
    async with running_front(), await connecting as client:
        assert client.welcome.pid == os.getpid()


async def test_another_version_is_told_apart_from_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_front():
        monkeypatch.setattr("pagechat.client.VERSION", VERSION + 1)
        greeting = asyncio.create_task(AsyncEngineClient.connect())
        await asyncio.sleep(0)
        monkeypatch.undo()
        with pytest.raises(RequestFailed, match="protocol version") as caught:
            await greeting
    assert caught.value.code == "version_mismatch"


# -- what is wrong is told before it is sent -------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (ChatMessage(role="tool", content="x"), ChatOptions()),  # type: ignore[arg-type]
        (ChatMessage(role="user", content=None), ChatOptions()),  # type: ignore[arg-type]
        (ChatMessage(role="user", content="\ud800"), ChatOptions()),
        (ChatMessage(role="user", content="x"), ChatOptions(temperature=9.0)),
        (ChatMessage(role="user", content="x"), ChatOptions(seed=2**63)),
        (ChatMessage(role="user", content="x"), ChatOptions(seed=10**20)),
        (ChatMessage(role="user", content="x"), ChatOptions(stop=[""])),
        (ChatMessage(role="user", content="x"), ChatOptions(stop=["x"] * 17)),
        (ChatMessage(role="user", content="x"), ChatOptions(max_tokens=0)),
        (ChatMessage(role="user", content="x" * (MAX_CLIENT_FRAME + 1)), ChatOptions()),
    ],
    ids=range(10),
)
@pytest.mark.usefixtures("shared_daemon")
async def test_a_request_that_the_daemon_would_reject_fails_here(message: ChatMessage, options: ChatOptions) -> None:
    async with await AsyncEngineClient.connect() as client:
        with pytest.raises(RequestFailed) as caught:
            await anext(client.chat([message], options=options))
        assert caught.value.code == "bad_request"
        assert (await client.status()).state in ("loading", "ready")


@pytest.mark.usefixtures("shared_daemon")
async def test_a_request_id_in_use_fails_here_and_the_first_goes_on() -> None:
    async with await AsyncEngineClient.connect() as client:
        first = client.chat(user("hello"), request_id="same")
        assert isinstance(await anext(first), Accepted)
        with pytest.raises(RequestFailed, match="in use"):
            await anext(client.chat(user("hello"), request_id="same"))
        assert isinstance([event async for event in first][-1], Finished)


@pytest.mark.usefixtures("shared_daemon")
async def test_a_rejection_that_names_nobody_fails_everything_rather_than_nothing() -> None:
    async with await AsyncEngineClient.connect() as client:
        stream = client.chat(user("hello"), session="long")
        await anext(stream)
        client._link.send(b"not a message of ours")
        with pytest.raises(RequestFailed):
            await all_of(stream)


# -- a daemon that goes ----------------------------------------------------------------------------


def test_a_killed_daemon_is_noticed_in_the_middle_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.05")

    async def scene(daemon: Any) -> dict[str, Any]:
        client = await AsyncEngineClient.connect()
        reports = client.telemetry()
        stream = client.chat(user("a long story"), session="long")
        while not isinstance(await anext(stream), Delta):
            pass

        # given somebody in each kind of wait
        waits = {
            "chat": asyncio.create_task(all_of(stream)),
            "telemetry": asyncio.create_task(all_of(reports)),
            "gone": asyncio.create_task(client.wait_gone()),
        }
        await asyncio.sleep(0)
        daemon.process.kill()
        killed = time.monotonic()
        _, pending = await asyncio.wait(waits.values(), timeout=5)
        assert not pending
        assert time.monotonic() - killed < 2
        with pytest.raises(DaemonGone):
            await client.status()
        await client.close()
        return {name: task.exception() for name, task in waits.items()}

    with serving() as daemon:
        ends = asyncio.run(scene(daemon))
    assert isinstance(ends["chat"], DaemonGone)
    assert isinstance(ends["telemetry"], DaemonGone)
    assert ends["gone"] is None


async def test_what_the_daemon_said_last_arrives_before_its_end() -> None:
    # libzmq issue 4660: the last messages lost at close
    async with running_front() as front:
        client = await AsyncEngineClient.connect()
        streams = [client.chat(user("story"), session="long") for _ in range(20)]
        for stream in streams:
            await anext(stream)
        front.stop_asked.set()
        for stream in streams:
            events = [event async for event in stream]
            assert events[-1].finish_reason in ("abort", "length")
    await client.wait_gone()
    await client.close()


@pytest.mark.usefixtures("shared_daemon")
async def test_closing_the_client_ends_what_waits_on_it() -> None:
    client = await AsyncEngineClient.connect()
    stream = client.chat(user("story"), session="long")
    await anext(stream)
    reports = client.telemetry()
    await client.close()
    with pytest.raises(DaemonGone, match="client was closed"):
        await all_of(stream)
    with pytest.raises(DaemonGone):
        await all_of(reports)


@pytest.mark.usefixtures("shared_daemon")
async def test_telemetry_that_is_closed_just_ends() -> None:
    async with await AsyncEngineClient.connect() as client:
        reports = client.telemetry()
        reports.close()
        assert [report async for report in reports if report.running] == []


def test_stop_daemon_returns_when_it_has_gone() -> None:
    with serving() as daemon:
        with EngineClient() as client:
            client.stop_daemon()
        assert not rundir.daemon_lives(rundir.run_dir())
        assert daemon.process.wait(5) == 0


# -- without a loop ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_daemon")
def test_the_blocking_client_does_the_same() -> None:
    with EngineClient.connect() as client:
        reports = client.telemetry()
        accepted, *deltas, finished = client.chat(user("Hello"), session="s")
        assert isinstance(accepted, Accepted)
        assert isinstance(finished, Finished)
        assert finished.text == "".join(delta.text for delta in deltas if isinstance(delta, Delta))
        assert client.status().state == "ready"
        assert client.snapshot().num_blocks == 400
        assert next(reports).step >= 0
        with pytest.raises(RequestFailed, match="at least one message"):
            list(client.chat([]))
        for _ in client.chat(user("long"), session="long"):
            break  # leaving early is fine
        wait_until(lambda: not client.snapshot().sequences, "idle pool")


def test_the_blocking_client_without_a_daemon_says_so_and_leaves_no_thread() -> None:
    import threading

    with pytest.raises(NoDaemon):
        EngineClient()
    assert not [thread for thread in threading.enumerate() if thread.name == "engine-client"]


def test_the_blocking_client_notices_a_killed_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.05")
    with serving() as daemon:
        client = EngineClient()
        stream = client.chat(user("story"), session="long")
        next(stream)
        daemon.signal(signal.SIGKILL)
        with pytest.raises(DaemonGone):
            list(stream)
        client.close()


def test_importing_the_client_brings_neither_screen_nor_tensors() -> None:
    code = "import sys, pagechat.client; print({'textual', 'torch', 'transformers', 'tokenizers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_a_frame_holds_what_was_given() -> None:
    from pagechat.client import _checked

    chat = Chat(request_id="r", session="s", messages=user("hé 🌶"), options=ChatOptions(stop=["\n"]))
    assert decode_client_message(_checked(chat)) == chat
