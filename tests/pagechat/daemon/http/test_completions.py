"""/v1/completions, /tokenize, /detokenize, /v1/models and their neighbours."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

MODEL = "smollm2"


@pytest.fixture
def tokens(http: httpx2.Client) -> list[int]:
    """ "one two" """
    found: list[int] = http.post("/tokenize", json={"prompt": "one two"}).json()["tokens"]
    return found


def test_a_text_is_gone_on_with(client: openai.OpenAI) -> None:
    found = client.completions.create(model=MODEL, prompt="one two")
    assert (found.object, found.choices[0].text, found.choices[0].finish_reason) == (
        "text_completion",
        "one two",
        "stop",
    )


def test_sixteen_tokens_are_the_default(client: openai.OpenAI) -> None:
    found = client.completions.create(model=MODEL, prompt="one two three " * 10)
    assert found.usage is not None
    assert (found.usage.completion_tokens, found.choices[0].finish_reason) == (16, "length")


def test_token_ids_are_a_prompt_too(client: openai.OpenAI, tokens: list[int]) -> None:
    found = client.completions.create(model=MODEL, prompt=tokens)
    assert found.choices[0].text == "one two"
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_are_answered_in_their_order(client: openai.OpenAI, stream: bool) -> None:
    prompts = ["alpha", "beta gamma", "delta"]
    texts = [""] * 6
    found: Any = client.completions.create(model=MODEL, prompt=prompts, n=2, stream=stream)
    for part in found if stream else [found]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts[::2] == prompts
    assert all(whole.endswith(cut) for whole, cut in zip(texts[::2], texts[1::2], strict=True))


def test_usage_counts_each_prompt_once(client: openai.OpenAI, tokens: list[int]) -> None:
    found = client.completions.create(model=MODEL, prompt=[tokens, tokens], n=3)
    assert found.usage is not None
    assert found.usage.prompt_tokens == 2 * len(tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_an_echo_comes_before_the_answer(
    client: openai.OpenAI, tokens: list[int], stream: bool, as_tokens: bool
) -> None:
    prompt: Any = tokens if as_tokens else "one two"
    found: Any = client.completions.create(model=MODEL, prompt=prompt, echo=True, stream=stream)
    assert "".join(part.choices[0].text for part in (found if stream else [found])) == "one twoone two"


def test_control_tokens_in_a_raw_prompt_are_control_tokens(http: httpx2.Client) -> None:
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    from_messages = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hello"}]}).json()
    assert http.post("/tokenize", json={"prompt": prompt}).json()["tokens"] == from_messages["tokens"]


def test_tokens_and_text_are_two_forms_of_one_thing(http: httpx2.Client) -> None:
    found = http.post("/tokenize", json={"prompt": "a 🌶 b", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 512  # tests/fake_engine.py: MAX_CONTEXT
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "a 🌶 b"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt[0]"),
        ("/v1/completions", {"prompt": [512]}, "prompt[0]"),
        ("/v1/completions", {"prompt": ["a", 1]}, "prompt[1]"),
        ("/v1/completions", {"prompt": ["a"] * 257}, "prompt"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
        ("/v1/completions", {"prompt": "a", "best_of": 17}, "best_of"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/detokenize", {"tokens": [5, 512]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_a_wrong_field_is_named(http: httpx2.Client, path: str, body: dict[str, Any], param: str) -> None:
    response = http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_models_tell_what_is_served(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "pagechat"
    with pytest.raises(openai.NotFoundError, match="serves 'smollm2'"):
        client.models.retrieve("gpt-4o")


def test_health_readiness_and_version(http: httpx2.Client) -> None:
    assert http.get("/health").json() == http.get("/ready").json() == {"status": "ok"}
    assert http.get("/version").json()["version"]


def test_the_pool_and_the_usage_are_json(http: httpx2.Client, client: openai.OpenAI) -> None:
    client.completions.create(model=MODEL, prompt="metered", extra_body={"session": "metered"})
    pool = http.get("/v1/pool").json()
    assert (pool["state"], pool["pool"]["num_blocks"], pool["http"]) == ("ready", 400, str(http.base_url).rstrip("/"))
    usage = http.get("/v1/usage").json()
    (mine,) = [one for one in usage["sessions"] if one["name"] == "metered"]
    assert mine["generated_tokens"] > 0
    http.delete("/v1/sessions/metered")


def test_sessions_are_listed_forked_pinned_and_closed(http: httpx2.Client) -> None:
    http.post("/v1/completions", json={"prompt": "a chat that goes on", "session": "one"})
    forked = http.post("/v1/sessions/one/fork", json={"target": "two"})
    assert forked.json()["tokens"] > 0
    assert http.post("/v1/sessions/two/pin", json={"pinned": True}).status_code == 200
    found = {one["session"]: one for one in http.get("/v1/sessions").json()["data"]}
    assert (found["one"]["pinned"], found["two"]["pinned"]) == (False, True)
    assert http.post("/v1/sessions/two/pin", json={"pinned": False}).status_code == 200
    for name in ("one", "two"):
        assert http.delete(f"/v1/sessions/{name}").status_code == 200
    assert http.post("/v1/sessions/nobody/fork", json={"target": "two"}).status_code == 404
