"""Several answers to one request, and beam search, between real sockets and the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.protocol import BeamParams
from pagechat.client import AsyncEngineClient, EngineClient, RequestFailed
from pagechat.protocol import ChatOptions, Delta, Finished
from pagechat.text.answer import AnswerText
from tests.daemons import notes, running_front, until, user

pytestmark = pytest.mark.usefixtures("fake_engine")


@pytest.fixture
async def client() -> AsyncIterator[AsyncEngineClient]:
    async with running_front(), await AsyncEngineClient.connect() as client:
        yield client
        while (await client.snapshot()).sequences:
            await asyncio.sleep(0.01)


async def events(stream: Any) -> list[Any]:
    return [event async for event in stream]


def finished(found: list[Any]) -> dict[int, Finished]:
    return {event.index: event for event in found if isinstance(event, Finished)}


async def test_each_answer_has_its_own_deltas_end_and_count(client: AsyncEngineClient) -> None:
    found = await events(client.chat(user("one two three"), n=3))
    answers = finished(found)
    assert sorted(answers) == [0, 1, 2]
    assert isinstance(found[-1], Finished)
    # the fake engine leaves out the first token more with each answer
    assert answers[0].text == "user\none two three\nassistant\n"
    assert answers[0].text.endswith(answers[1].text)
    assert answers[1].text.endswith(answers[2].text)
    assert [answers[i].usage.completion_tokens - answers[2].usage.completion_tokens for i in range(3)] == [2, 1, 0]
    for index, answer in answers.items():
        deltas = [event for event in found if isinstance(event, Delta) and event.index == index]
        assert "".join(delta.text for delta in deltas) == answer.text


async def test_a_stop_string_ends_one_answer_and_the_others_go_on(client: AsyncEngineClient) -> None:
    # "user\n" begins answer 0 only: the others left some of its tokens out
    answers = finished(await events(client.chat(user("hello"), n=2, options=ChatOptions(stop=["user"]))))
    assert (answers[0].text, answers[0].finish_reason) == ("", "stop")
    assert answers[1].text.endswith("hello\nassistant\n")
    assert answers[0].usage.completion_tokens < answers[1].usage.completion_tokens
    # and what the engine had finished by then is not aborted too early
    assert len(answers) == 2


async def test_the_engine_is_told_of_each_answer_that_a_stop_string_ended(client: AsyncEngineClient) -> None:
    options = ChatOptions(stop=["three"])
    answers = finished(await events(client.chat(user("one two three"), session="long", n=2, options=options)))
    assert [answer.finish_reason for answer in answers.values()] == ["stop", "stop"]
    await until(lambda: notes().count("AbortRequest") == 2, "aborts")


async def test_an_answer_that_a_stop_string_ended_takes_no_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.01")
    async with running_front(), await AsyncEngineClient.connect() as client:
        options = ChatOptions(stop=["user"], max_tokens=200)  # ends answer 0 only, with its first words
        stream = client.chat(user("hello"), session="long", n=2, options=options)
        while not isinstance(event := await anext(stream), Finished):
            pass
        assert (event.index, event.finish_reason) == (0, "stop")
        await until(lambda: notes().count("AbortRequest") == 1, "abort")
        while len((await client.snapshot()).sequences) > 1:
            await asyncio.sleep(0.01)
        (other,) = (await client.snapshot()).sequences
        answers = finished(await events(stream))
        assert answers.keys() == {1}
        assert answers[1].usage.completion_tokens == 200
        assert other.length < 200
        assert notes().count("AbortRequest") == 1, "the engine ended the other one by itself"


async def test_cancel_ends_every_answer_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    async with running_front(), await AsyncEngineClient.connect() as client:
        stream = client.chat(user("a long story"), session="long", request_id="r", n=3)
        while not isinstance(await anext(stream), Delta):
            pass
        await client.cancel("r")
        answers = finished(await events(stream))
    assert {index: answer.finish_reason for index, answer in answers.items()} == dict.fromkeys(range(3), "abort")


async def test_leaving_after_the_first_end_cancels_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    async with running_front(), await AsyncEngineClient.connect() as client:
        stream = client.chat(user("hello"), n=2, options=ChatOptions(stop=["user"]), session="long")
        while not isinstance(await anext(stream), Finished):
            pass
        await stream.aclose()
        await until(lambda: "AbortRequest" in notes(), "abort")


async def test_a_beam_search_delivers_whole_answers_best_first(client: AsyncEngineClient) -> None:
    found = await events(client.chat(user("one two"), n=2, beam=BeamParams(width=3)))
    answers = finished(found)
    assert answers[0].text == "user\none two\nassistant\n"
    assert answers[0].score is not None
    assert answers[1].score is not None
    assert answers[0].score > answers[1].score
    for index in answers:
        assert len([event for event in found if isinstance(event, Delta) and event.index == index]) <= 1


async def test_more_answers_than_beams_are_refused(client: AsyncEngineClient) -> None:
    with pytest.raises(RequestFailed, match="2 beams has no 3 answers"):
        await events(client.chat(user("x"), n=3, beam=BeamParams(width=2)))


@pytest.mark.parametrize("n", [0, 17])
async def test_the_number_of_answers_has_limits(n: int, client: AsyncEngineClient) -> None:
    with pytest.raises(RequestFailed) as caught:
        await events(client.chat(user("x"), n=n))
    assert caught.value.code == "bad_request"


async def test_the_blocking_client_does_the_same() -> None:
    def use() -> tuple[list[Any], list[str]]:
        with EngineClient() as client:
            found = list(client.chat(user("hello"), session="s", keep=True, n=2))
            assert client.manage_session("pin", "s").ok
            assert client.usage().sessions
            return found, [info.session for info in client.sessions()]

    async with running_front():
        found, names = await asyncio.to_thread(use)
    assert sorted(finished(found)) == [0, 1]
    assert names == ["s"]


async def test_a_request_whose_text_cannot_be_made_takes_no_token_from_the_others_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.01")
    feed = AnswerText.feed

    def failing(text: AnswerText, tokens: Any) -> str:
        if text.bad:  # type: ignore[attr-defined]
            raise ValueError("no such token")
        return feed(text, tokens)

    async with running_front() as front, await AsyncEngineClient.connect() as client:
        await client.snapshot()
        monkeypatch.setattr(AnswerText, "feed", failing)
        answer = type(front.answering.text).answer

        def marked(model: Any, options: ChatOptions, how: Any = None) -> AnswerText:
            text = answer(model, options, how)
            text.bad = "bad" in options.stop  # type: ignore[attr-defined]
            return text

        monkeypatch.setattr(type(front.answering.text), "answer", marked)
        others = [asyncio.create_task(events(client.chat(user(f"one two {n}")))) for n in range(4)]
        with pytest.raises(RequestFailed) as caught:
            await events(client.chat(user("three"), options=ChatOptions(stop=["bad"])))
        assert caught.value.code == "internal"
        for number, other in enumerate(others):
            assert (await other)[-1].text == f"user\none two {number}\nassistant\n"
        while (await client.snapshot()).sequences:  # the engine was told to stop, too
            await asyncio.sleep(0.01)
        assert not len(front.answering.requests)
