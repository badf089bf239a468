"""Sessions between their turns, as clients reach them through the front; why a turn missed; who has used what."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.protocol import CacheMiss, SessionInfo
from pagechat.client import AsyncEngineClient, RequestFailed
from pagechat.daemon.misses import describe
from pagechat.daemon.sessions import saved_session
from pagechat.protocol import ChatMessage, ChatOptions, Finished
from tests.daemons import running_front, until, user

pytestmark = pytest.mark.usefixtures("fake_engine")

QUESTION = "a question that is long enough to fill a few blocks of sixteen tokens each"


@pytest.fixture
async def client() -> AsyncIterator[AsyncEngineClient]:
    async with running_front(), await AsyncEngineClient.connect() as client:
        yield client


async def turn(client: AsyncEngineClient, messages: list[ChatMessage], session: str = "chat") -> Finished:
    """The last message of a turn of a session that goes on."""
    *_, finished = [event async for event in client.chat(messages, session=session, keep=True)]
    assert isinstance(finished, Finished)
    return finished


def then(messages: list[ChatMessage], answer: Finished, question: str) -> list[ChatMessage]:
    return [*messages, ChatMessage(role="assistant", content=answer.text), *user(question)]


async def infos(client: AsyncEngineClient) -> dict[str, SessionInfo]:
    return {info.session: info for info in await client.sessions()}


async def test_a_kept_session_stays_and_another_does_not(client: AsyncEngineClient) -> None:
    await turn(client, user(QUESTION), "kept")
    async for _ in client.chat(user("another"), session="passing"):
        pass
    assert list(await infos(client)) == ["kept"]
    assert (await infos(client))["kept"].state == "resident"


async def test_a_turn_that_a_stop_string_ended_is_kept_too(client: AsyncEngineClient) -> None:
    options = ChatOptions(stop=["three"])
    async for _ in client.chat(user("one two three"), session="long chat", keep=True, options=options):
        pass
    while (found := await infos(client)).get("long chat") is None or found["long chat"].state != "resident":
        await asyncio.sleep(0.01)
    assert found["long chat"].blocks > 0


async def test_the_next_turn_finds_the_turn_before_and_misses_nothing(client: AsyncEngineClient) -> None:
    first = await turn(client, user(QUESTION))
    second = await turn(client, then(user(QUESTION), first, "and now?"))
    assert second.usage.cached_tokens > first.usage.prompt_tokens
    assert second.miss is None


async def test_a_turn_that_rewrites_the_chat_is_told_the_first_difference(client: AsyncEngineClient) -> None:
    await turn(client, user("the cat sat"))
    second = await turn(client, user("the dog sat"))
    assert second.miss is not None
    assert second.miss.startswith("the prompt differs from the last turn at token ")
    assert '" c" before, " d' in second.miss


def test_an_evicted_block_is_named_with_its_tokens() -> None:
    miss = CacheMiss(reason="evicted", position=64)
    assert describe(miss, 16, str) == "block 4 (tokens 64..79) of the last turn was evicted"


def test_control_characters_of_a_token_are_escaped() -> None:
    miss = CacheMiss(reason="diverged", position=3, expected=1, found=None)
    assert "\x1b" not in describe(miss, 16, lambda token: "\x1b[31m")


async def test_pin_unpin_and_close(client: AsyncEngineClient) -> None:
    await turn(client, user(QUESTION))
    assert (await client.manage_session("pin", "chat")).ok
    assert (await infos(client))["chat"].pinned
    assert (await client.manage_session("unpin", "chat")).ok
    assert not (await infos(client))["chat"].pinned
    assert (await client.manage_session("close", "chat")).ok
    assert await infos(client) == {}


async def test_a_fork_shares_the_blocks(client: AsyncEngineClient) -> None:
    await turn(client, user(QUESTION))
    reply = await client.manage_session("fork", "chat", "branch")
    found = await infos(client)
    assert reply.ok
    assert reply.tokens == found["branch"].tokens == found["chat"].tokens
    async with asyncio.timeout(30):  # what the status tells comes by a socket of its own, perhaps after the reply
        while (status := await client.status()).pool is None or status.pool.shared == 0:
            await asyncio.sleep(0.01)
    assert status.pool.shared == found["chat"].blocks


async def test_a_fork_of_some_tokens_shares_the_blocks_of_these(client: AsyncEngineClient) -> None:
    await turn(client, user(QUESTION))
    reply = await client.manage_session("fork", "chat", "branch", 5)
    assert (reply.ok, reply.tokens, (await infos(client))["branch"].tokens) == (True, 5, 5)
    for action, tokens in (("pin", 5), ("fork", 0)):
        with pytest.raises(RequestFailed) as caught:
            await client.manage_session(action, "chat", "other" if action == "fork" else "", tokens)  # type: ignore[arg-type]
        assert caught.value.code == "bad_request"


async def test_a_full_block_has_a_name_by_which_it_is_found(client: AsyncEngineClient) -> None:
    await turn(client, user(QUESTION))
    snapshot = await client.snapshot()
    full, last = snapshot.sequences[0].blocks[0], snapshot.sequences[0].blocks[-1]
    assert snapshot.sequences[0].length % snapshot.block_size
    name = (await client.block(full)).name
    assert name is not None
    assert len(bytes.fromhex(name)) == 32, "a SHA-256"
    for block in (last, 0, 10**6):  # not full, the null block, no block
        assert (await client.block(block)).name is None


async def test_an_unknown_session_is_a_reply_not_a_failure(client: AsyncEngineClient) -> None:
    reply = await client.manage_session("pin", "nobody")
    assert (reply.ok, reply.message) == (False, "no session 'nobody' here")


@pytest.mark.parametrize(
    ("action", "session", "target"),
    [("pin", "", ""), ("pin", "x" * 257, ""), ("fork", "a", ""), ("fork", "a", "a"), ("save", "a", "/etc/passwd")],
)
async def test_names_that_name_nothing_are_refused(
    action: str, session: str, target: str, client: AsyncEngineClient
) -> None:
    with pytest.raises(RequestFailed) as caught:
        await client.manage_session(action, session, target)  # type: ignore[arg-type]
    assert caught.value.code == "bad_request"


async def test_a_saved_session_comes_back_after_a_restart() -> None:
    async with running_front(), await AsyncEngineClient.connect() as client:
        await turn(client, user(QUESTION), "../../a/name")
        saved = await client.manage_session("save", "../../a/name")
        assert saved.ok
    async with running_front(), await AsyncEngineClient.connect() as client:
        restored = await client.manage_session("restore", "../../a/name")
        assert (restored.ok, restored.tokens) == (True, saved.tokens)
        assert (await infos(client))["../../a/name"].tokens == saved.tokens
        assert not (await client.manage_session("restore", "never saved")).ok


def test_the_file_is_in_a_folder_of_this_user_whatever_the_name() -> None:
    folder = Path(os.environ["PAGECHAT_DATA_DIR"]) / "kv"
    folder.mkdir(mode=0o755)
    path = saved_session("../../etc/\x00passwd")
    assert path.parent == folder
    assert path.suffix == ".safetensors"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_usage_adds_up_and_names_the_session(client: AsyncEngineClient) -> None:
    finished = await turn(client, user(QUESTION))
    report = await client.usage()
    (owner,) = report.sessions
    assert owner.name == "chat"
    assert owner.prompt_tokens_computed == finished.usage.prompt_tokens
    assert owner.generated_tokens == finished.usage.completion_tokens
    total = owner.block_seconds + report.unowned_block_seconds
    assert total == pytest.approx(report.num_blocks * report.seconds)


async def test_status_has_the_shadows_of_every_policy(client: AsyncEngineClient) -> None:
    await turn(client, user(QUESTION))
    shadows = {shadow.policy: shadow for shadow in (await client.status()).shadows}
    assert set(shadows) == {"paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle"}
    assert shadows["contiguous-max"].reserved_waste > shadows["paged"].reserved_waste


async def test_what_a_killed_save_left_is_swept_when_the_front_and_when_an_engine_starts(folders: Path) -> None:
    folder = saved_session("chat").parent
    left = folder / f"{'0' * 64}.999999999-0.tmp"
    left.write_bytes(b"x" * 1000)
    async with running_front() as front, await AsyncEngineClient.connect() as client:
        await until(lambda: not left.exists(), "sweep at the start")
        await client.status()
        await front.supervisor.ready()
        left.write_bytes(b"x" * 1000)
        os.kill(front.supervisor.engine_pid or 0, signal.SIGKILL)
        await until(lambda: not left.exists(), "sweep after the engine's end")
