"""What clients may ask of the choice of tokens, by the real engine on a tiny random model."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import httpx2
import openai
import pydantic
import pytest

MODEL = "tiny-llama"
HELLO: Any = [{"role": "user", "content": "What is a cache?"}]


@pytest.fixture
def client(real_client: openai.OpenAI) -> openai.OpenAI:
    return real_client


@pytest.fixture
def http(real_http: httpx2.Client) -> httpx2.Client:
    return real_http


def greedy(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, **{"max_tokens": 12, **options})


def ids(found: Any) -> list[int]:
    return found.model_dump()["choices"][0]["token_ids"]  # type: ignore[no-any-return]


WITH_IDS = {"return_token_ids": True}


# -- log probabilities -----------------------------------------------------------------------------


def test_the_likeliest_tokens_of_a_greedy_answer_are_its_own(client: openai.OpenAI) -> None:
    choice = greedy(client, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 12
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        assert sum(math.exp(one.logprob) for one in entry.top_logprobs) <= 1.0001
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    assert b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace") == choice.message.content


def test_the_log_probabilities_of_a_stream_are_those_of_the_whole(client: openai.OpenAI) -> None:
    whole = greedy(client, logprobs=True).choices[0].logprobs.content
    streamed: list[Any] = []
    for chunk in greedy(client, logprobs=True, stream=True):
        found = chunk.choices[0].logprobs
        if chunk.choices[0].delta.content:
            assert found.content  # no text without its tokens, no tokens without text (vLLM issue 8988)
        streamed += found.content if found else []
    assert [(one.token, one.logprob) for one in streamed] == [(one.token, one.logprob) for one in whole]


def test_a_completion_tells_four_lists(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="A page", temperature=0, max_tokens=5, logprobs=2).choices[0]
    found = choice.logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.text_offset is not None
    assert found.top_logprobs is not None
    assert len(found.tokens) == len(found.token_logprobs or ()) == len(found.top_logprobs) == 5
    assert found.text_offset[0] == 0
    assert [len(top) for top in found.top_logprobs] == [2] * 5


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_has_the_prompts_log_probabilities(client: openai.OpenAI, max_tokens: int, stream: bool) -> None:
    # vLLM issue 6521: echo with max_tokens 0 crashed; issue 10234: echo with log probabilities was a 500
    found: Any = client.completions.create(
        model=MODEL, prompt="A page table", temperature=0, max_tokens=max_tokens, echo=True, logprobs=1, stream=stream
    )
    parts = list(found) if stream else [found]
    scored: list[Any] = []
    for part in parts:
        for choice in part.choices:
            scored += choice.logprobs.token_logprobs if choice.logprobs else []
    text = "".join(choice.text for part in parts for choice in part.choices)
    prompt = client.completions.create(model=MODEL, prompt="A page table", max_tokens=1).usage
    assert prompt is not None
    assert len(scored) == prompt.prompt_tokens + max_tokens
    assert scored[0] is None
    assert all(logprob <= 0 for logprob in scored[1:])
    assert text.startswith("A page table")
    assert (text == "A page table") == (max_tokens == 0)


def test_prompt_logprobs_are_vllms(http: httpx2.Client) -> None:
    body = {"prompt": "A page table", "max_tokens": 1, "prompt_logprobs": 2, "return_token_ids": True}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token, entries in zip(choice["prompt_token_ids"][1:], others, strict=True):
        assert str(token) in entries
        assert {1, 2} <= {entry["rank"] for entry in entries.values()}


def test_best_of_gives_the_likeliest(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": "A page", "max_tokens": 8, "seed": 3, "temperature": 1.0}
    every = client.completions.create(**options, n=6, logprobs=0)
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in every.choices]  # type: ignore
    best = client.completions.create(**options, n=2, best_of=6)
    ranked = sorted(zip(means, every.choices, strict=True), key=lambda pair: pair[0], reverse=True)
    assert [choice.text for choice in best.choices] == [choice.text for _, choice in ranked[:2]]
    assert best.usage is not None
    assert every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens  # what was made is what was used


# -- which tokens come -------------------------------------------------------------------------------


def test_a_bias_forces_and_forbids_a_token(client: openai.OpenAI) -> None:
    first = ids(greedy(client, extra_body=WITH_IDS))[0]
    assert first not in ids(greedy(client, logit_bias={str(first): -100}, extra_body=WITH_IDS))
    assert ids(greedy(client, logit_bias={"65": 100}, extra_body=WITH_IDS)) == [65] * 12


def test_only_allowed_tokens_come(client: openai.OpenAI) -> None:
    found = ids(greedy(client, extra_body={**WITH_IDS, "allowed_token_ids": [65, 66, 67]}))
    assert set(found) <= {65, 66, 67}


def test_penalties_keep_a_token_from_coming_again(client: openai.OpenAI) -> None:
    options = {"logit_bias": {"65": 12, "66": 11}, "extra_body": WITH_IDS}
    plain = ids(greedy(client, **options))
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert len(set(ids(greedy(client, **options, **penalty)))) >= len(set(plain))
    held = ids(greedy(client, logit_bias={"65": 12}, extra_body={**WITH_IDS, "repetition_penalty": 50.0}))
    assert held.count(65) < 12


def test_min_tokens_and_ignore_eos_keep_an_answer_going(client: openai.OpenAI) -> None:
    # <|im_end|>, token 2, ends an answer (tests/models.py)
    ends = {"logit_bias": {"2": 100}}
    assert greedy(client, **ends).usage.completion_tokens == 1
    assert greedy(client, **ends, extra_body={"min_tokens": 5}).usage.completion_tokens == 6
    held = greedy(client, **ends, extra_body={"ignore_eos": True})
    assert (held.usage.completion_tokens, held.choices[0].finish_reason) == (12, "length")


def test_a_stop_token_ends_an_answer(client: openai.OpenAI) -> None:
    found = ids(greedy(client, extra_body=WITH_IDS))
    ended = greedy(client, extra_body={**WITH_IDS, "stop_token_ids": [found[4]]})
    assert ids(ended) == found[: found.index(found[4]) + 1]
    assert ended.choices[0].finish_reason == "stop"


def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(client: openai.OpenAI) -> None:
    # vLLM issues 51226 and 17524
    def seeded() -> list[str | None]:
        found = client.chat.completions.create(model=MODEL, messages=HELLO, seed=42, n=2, max_tokens=10, temperature=1)
        return [choice.message.content for choice in found.choices]

    alone = seeded()
    neighbour = client.chat.completions.create(model=MODEL, messages=HELLO, n=4, max_tokens=200, stream=True)
    next(iter(neighbour))
    assert seeded() == alone
    neighbour.close()
    assert alone[0] != alone[1]


def test_beams_come_best_first(client: openai.OpenAI) -> None:
    found = client.completions.create(
        model=MODEL, prompt="A page", n=2, max_tokens=6, extra_body={"use_beam_search": True, "length_penalty": 1.0}
    )
    assert len({choice.text for choice in found.choices}) == 2


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-12])
def test_a_temperature_near_zero_is_greedy(client: openai.OpenAI, temperature: float) -> None:
    # vLLM issue 3063, TensorRT-LLM issue 15715
    expected = greedy(client).choices[0].message.content
    found = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=temperature, max_tokens=12)
    assert found.choices[0].message.content == expected


# -- structured output -------------------------------------------------------------------------------


class Place(pydantic.BaseModel):
    """A random model ends it, as it would hardly end a string."""

    model_config = pydantic.ConfigDict(extra="forbid")

    where: Literal["device", "host"]
    pinned: bool


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["page", "block"]}, "free": {"type": "boolean"}},
    "required": ["kind", "free"],
    "additionalProperties": False,
}


def test_a_pydantic_model_comes_back_parsed(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Place, temperature=0, max_tokens=100
    )
    assert isinstance(found.choices[0].message.parsed, Place)


@pytest.mark.parametrize(
    "how",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_an_answer_follows_a_schema(http: httpx2.Client, how: dict[str, Any]) -> None:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 60, **how}
    (choice,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    found = json.loads(choice["message"]["content"])
    assert set(found) == {"kind", "free"}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_regex": "[0-7]{3}"}, {f"{number:03o}" for number in range(512)}),
        ({"guided_grammar": 'start: "up" | "down"'}, {"up", "down"}),
        ({"guided_grammar": 'root ::= "left" | "right"'}, {"left", "right"}),
        ({"structured_outputs": {"choice": ["a"]}}, {"a"}),
    ],
)
def test_an_answer_follows_a_grammar(http: httpx2.Client, how: dict[str, Any], allowed: set[str]) -> None:
    body = {"prompt": "Say", "temperature": 1, "max_tokens": 20, "n": 3, **how}
    choices = http.post("/v1/completions", json=body).json()["choices"]
    assert {choice["text"] for choice in choices} <= allowed


@pytest.mark.parametrize(
    "how",
    [
        {"guided_json": {"type": "objekt"}},
        {"guided_json": "{"},
        {"guided_regex": "foo**("},
        {"guided_grammar": "start: nothing"},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "("}}}},
        {"guided_regex": "a", "guided_choice": ["b"]},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_is_none_is_refused_and_harms_nobody(
    http: httpx2.Client, how: dict[str, Any], stream: bool
) -> None:
    # vLLM issues 17248, 17313, 19270: a bad schema or regex killed the engine
    response = http.post("/v1/completions", json={"prompt": "Say", "stream": stream, **how})
    assert response.status_code == 400, response.text
    assert http.post("/v1/completions", json={"prompt": "Say", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-38}, "repetition_penalty"),
        ({"top_k": 3_000_000_000}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
        ({"n": 17}, "n"),
        ({"min_p": 1.5}, "min_p"),
        ({"priority": 2**31}, "priority"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"guided_regex": "a\ud800"}, "guided_regex"),
        ({"session": "\ud800"}, "session"),
    ],
)
def test_a_wrong_field_is_named(http: httpx2.Client, change: dict[str, Any], param: str) -> None:
    content = json.dumps({"messages": HELLO, **change})
    response = http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_what_the_engine_refuses_is_a_400_too(http: httpx2.Client) -> None:
    for change in ({"logit_bias": {"512": 1}}, {"min_tokens": 9, "max_tokens": 8}, {"allowed_token_ids": [512]}):
        response = http.post("/v1/chat/completions", json={"messages": HELLO, **change})
        assert response.status_code == 400
        assert next(iter(change)) in response.json()["error"]["message"]
