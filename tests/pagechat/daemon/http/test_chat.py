"""/v1/chat/completions through OpenAI's own client. The fake engine answers with the prompt's text tokens."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx2
import openai
import pytest

from tests.daemons import wait_until
from tests.pagechat.daemon.http.conftest import Served

MODEL = "smollm2"
HELLO: Any = [{"role": "user", "content": "hello 🌶"}]
LONG: Any = [{"role": "user", "content": "a long story " * 12}]
"""Its answer takes a while."""
ECHO = "user\nhello 🌶\nassistant\n"


def test_an_answer_comes_whole(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert found.object == "chat.completion"
    assert found.model == MODEL
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ECHO, "stop")
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_the_deltas_of_a_stream_are_the_whole_answer(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ECHO
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_in_a_chunk_without_choices(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO)
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    *others, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in others)


def test_priority_is_the_requests_in_the_engine(client: openai.OpenAI, served: Served) -> None:
    with client.chat.completions.create(model=MODEL, messages=LONG, stream=True, extra_body={"priority": -2}) as stream:
        next(iter(stream))
        assert [one.priority for one in served.engine.sessions() if one.state == "running"] == [-2]


async def test_the_async_client_streams_many_at_once(async_client: openai.AsyncOpenAI) -> None:
    async def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"number {number}"}]
        stream = await async_client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    texts = await asyncio.gather(*(ask(number) for number in range(20)))
    assert texts == [f"user\nnumber {number}\nassistant\n" for number in range(20)]


def test_several_answers_each_have_an_index(client: openai.OpenAI) -> None:
    # the fake engine leaves out the first token more with each answer
    found = client.chat.completions.create(model=MODEL, messages=HELLO, n=3)
    texts = [choice.message.content or "" for choice in found.choices]
    assert texts[0] == ECHO
    assert all(longer.endswith(shorter) for longer, shorter in itertools.pairwise(texts))
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, n=3, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


@pytest.mark.parametrize("stop", ["hello", ["never", "hello"]])
def test_a_stop_string_is_not_part_of_the_answer(client: openai.OpenAI, stop: object) -> None:
    found = client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop)  # type: ignore[call-overload]
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("user\n", "stop")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_ends_with_length(client: openai.OpenAI, name: str) -> None:
    found = client.chat.completions.create(model=MODEL, messages=HELLO, **{name: 3})  # type: ignore[call-overload]
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 3


def test_turns_parts_and_the_developer_role_reach_the_template(client: openai.OpenAI) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "", "refusal": None, "annotations": [], "audio": None},
        {"role": "user", "content": "three"},
    ]
    found = client.chat.completions.create(model=MODEL, messages=messages)
    expected = "system\nBe brief.\nuser\none\ntwo\nassistant\n\nuser\nthree\nassistant\n"
    assert found.choices[0].message.content == expected


def test_an_answer_may_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message
    messages: Any = [*HELLO, answer.model_dump(), {"role": "user", "content": "more"}]
    found = client.chat.completions.create(model=MODEL, messages=messages)
    assert (found.choices[0].message.content or "").endswith(f"assistant\n{ECHO}\nuser\nmore\nassistant\n")


def test_a_prefill_is_gone_on_with(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "yes"}, {"role": "assistant", "content": "yes"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    found = client.chat.completions.create(model=MODEL, messages=messages, extra_body=extra)
    # the last turn is open: nothing stands between its text and the answer, and no turn is opened after it
    assert found.choices[0].message.content == "user\nyes\nassistant\nyes"


def test_token_ids_come_when_they_are_asked_for(client: openai.OpenAI, http: httpx2.Client) -> None:
    asked = {"return_token_ids": True}
    found = client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=asked).model_dump()
    tokens = http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert found["prompt_token_ids"] == tokens
    ids = found["choices"][0]["token_ids"]
    assert len(ids) == found["usage"]["completion_tokens"]
    assert http.post("/detokenize", json={"tokens": ids[:-1]}).json()["prompt"] == ECHO
    assert http.post("/detokenize", json={"tokens": ids[-1:]}).json()["prompt"] == "<|im_end|>"
    streamed: list[int] = []
    for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, extra_body=asked):
        streamed += chunk.model_dump()["choices"][0].get("token_ids", [])
    assert streamed == ids


def test_a_session_keeps_its_blocks_for_the_next_turn(client: openai.OpenAI, http: httpx2.Client) -> None:
    first = [{"role": "user", "content": "tell me something long " * 5}]
    body = {"session": "essay"}
    answer = client.chat.completions.create(model=MODEL, messages=first, extra_body=body).choices[0].message
    second = [*first, {"role": "assistant", "content": answer.content}, {"role": "user", "content": "more"}]
    found = client.chat.completions.create(model=MODEL, messages=second, extra_body=body)
    assert found.usage is not None
    assert found.usage.prompt_tokens_details is not None
    before = http.post("/tokenize", json={"messages": first}).json()["count"]
    # not only the prompt of the turn before: the answer's blocks too
    assert (found.usage.prompt_tokens_details.cached_tokens or 0) > before
    assert http.delete("/v1/sessions/essay").status_code == 200


def test_salts_keep_prefixes_apart(client: openai.OpenAI) -> None:
    def cached(salt: str) -> int:
        long = [{"role": "user", "content": "salted words " * 20}]
        found = client.chat.completions.create(model=MODEL, messages=long, extra_body={"cache_salt": salt})
        assert found.usage is not None
        assert found.usage.prompt_tokens_details is not None
        return found.usage.prompt_tokens_details.cached_tokens or 0

    assert cached("one") == 0
    assert cached("two") == 0
    assert cached("one") > 0


def test_a_client_that_hangs_up_frees_its_blocks(served: Served, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=LONG, stream=True, n=4)
    next(iter(stream))
    aborts = served.engine_notes().count("AbortRequest")
    stream.close()
    wait_until(lambda: served.engine_notes().count("AbortRequest") == aborts + 1, "abort")
    # and the fixture waits until no sequence is left


def test_a_client_that_hangs_up_before_a_whole_answer_is_aborted_too(served: Served, idle: None) -> None:
    aborts = served.engine_notes().count("AbortRequest")
    body = {"messages": LONG, "n": 4}
    with httpx2.Client(base_url=served.url) as raw, pytest.raises(httpx2.ReadTimeout):
        raw.post("/v1/chat/completions", json=body, timeout=0.05)
    wait_until(lambda: served.engine_notes().count("AbortRequest") == aborts + 1, "abort")


def test_a_stream_is_valid_server_sent_events(http: httpx2.Client) -> None:
    with http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        blocks = response.read().decode().split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    assert all(json.loads(block.removeprefix("data: "))["object"] == "chat.completion.chunk" for block in blocks)


def test_requests_do_not_wait_for_each_other(client: openai.OpenAI) -> None:
    long = client.chat.completions.create(model=MODEL, messages=LONG, stream=True, n=4)
    next(iter(long))
    client.chat.completions.create(model=MODEL, messages=HELLO)
    assert next(iter(long)).choices[0].finish_reason is None
    long.close()
