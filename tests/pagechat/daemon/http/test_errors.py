"""What is wrong with a request is said in OpenAI's shape, names the field, and harms nobody else."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from pagechat.daemon.http.gate import MAX_BODY, MAX_HEADERS

HELLO = [{"role": "user", "content": "hello"}]


def refused(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": [512]}, "stop_token_ids[0]"),  # tests/models.py: VOCAB
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"top_k": 2**40}, "top_k"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"every": 1}}, "stream_options.every"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
        ({"continue_final_message": True}, "add_generation_prompt"),
        ({"functions": []}, "functions"),
        ({"store": True}, "store"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"chat_template": "{{ 7 }}"}, "chat_template"),
        ({"session": "a/b"}, "session"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"think": True, "bos_token": "x"}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"model": "gpt-4o"}, "model"),
    ],
)
def test_a_wrong_field_is_named(http: httpx2.Client, change: dict[str, Any], param: str) -> None:
    response = http.post("/v1/chat/completions", json={"messages": HELLO, **change})
    error = refused(response, 404 if param == "model" else 400)
    assert error["param"] == param
    assert param.partition("[")[0].partition(".")[0] in error["message"]


def test_fields_that_ask_nothing_of_a_text_model_are_taken(http: httpx2.Client) -> None:
    labels = {"user": "me", "service_tier": "auto", "store": False, "safety_identifier": "x", "prompt_cache_key": "y"}
    nulls = dict.fromkeys(("functions", "function_call", "audio", "metadata", "prediction", "seed", "stop"))
    body = {"messages": HELLO, "modalities": ["text"], **labels, **nulls}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("content", "content_type", "words"),
    [
        (b"{", "application/json", "not valid JSON"),
        (b"[]", "application/json", "JSON object"),
        (b'"text"', "application/json", "JSON object"),
        (b"", "application/json", "content-type: application/json"),
        (b'{"messages": []}', "text/plain", "content-type: application/json"),  # what a foreign web page may send
        (b"{\xff}", "application/json", "parsing the body"),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "application/json", "parsing the body"),
        (b'{"seed": ' + b"9" * 10_000 + b"}", "application/json", "parsing the body"),
        (b'{"temperature": NaN, "messages": [{"role": "user", "content": "x"}]}', "application/json", "temperature"),
    ],
)
def test_what_is_no_json_object_is_refused(http: httpx2.Client, content: bytes, content_type: str, words: str) -> None:
    response = http.post("/v1/chat/completions", content=content, headers={"content-type": content_type})
    assert words in refused(response)["message"]


def test_a_large_body_is_refused_whatever_it_promises(http: httpx2.Client) -> None:
    large = b" " * (MAX_BODY + 1)
    headers = {"content-type": "application/json"}
    refused(http.post("/v1/chat/completions", content=large, headers=headers), 413)
    in_chunks = http.post("/v1/chat/completions", content=iter([large[: MAX_BODY // 2]] * 3), headers=headers)
    refused(in_chunks, 413)


def test_many_or_large_headers_are_refused(http: httpx2.Client) -> None:
    many = {f"x-{number}": "1" for number in range(MAX_HEADERS)}
    refused(http.get("/v1/models", headers=many), 431)
    assert http.get("/v1/models", headers={"x-large": "a" * 40_000}).status_code == 431


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_the_context_cannot_hold_is_refused_before_the_first_byte(
    client: openai.OpenAI, stream: bool
) -> None:
    long = [{"role": "user", "content": "word " * 1000}]
    with pytest.raises(openai.BadRequestError, match="the context holds 512") as caught:
        client.chat.completions.create(model="smollm2", messages=long, stream=stream)  # type: ignore[call-overload]
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "field", "limit"),
    [
        ("/v1/chat/completions", "messages", "max_tokens"),
        ("/v1/completions", "prompt", "max_tokens"),
        ("/v1/responses", "input", "max_output_tokens"),
    ],
)
def test_what_the_context_cannot_hold_is_named_as_the_client_named_it(
    http: httpx2.Client, path: str, field: str, limit: str
) -> None:
    def prompt(text: str) -> Any:
        return [{"role": "user", "content": text}] if field == "messages" else text

    assert refused(http.post(path, json={field: prompt("word " * 1000)}))["param"] == field
    assert refused(http.post(path, json={field: prompt("word"), limit: 10_000}))["param"] == limit


def test_the_templates_own_refusal_reaches_the_client(http: httpx2.Client) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    body = {"messages": messages[:1], "continue_final_message": True, "add_generation_prompt": False}
    error = refused(http.post("/v1/chat/completions", json=body))
    assert "only an assistant's message can be continued" in error["message"]


def test_addresses_and_methods_that_are_not_there(http: httpx2.Client) -> None:
    assert "/openapi.json" in refused(http.get("/v1/nowhere"), 404)["message"]
    refused(http.get("/v1/chat/completions"), 405)
    assert http.get("/docs").status_code == 404  # its page would load scripts from elsewhere


def test_every_response_has_a_request_id(http: httpx2.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    made = http.get("/nowhere", headers={"x-request-id": "x" * 200}).headers["x-request-id"]
    assert made.startswith("req-")


def test_a_wrong_method_is_told_the_right_one(http: httpx2.Client) -> None:
    response = http.put("/v1/models")
    assert refused(response, 405)["message"] == "/v1/models takes GET, not PUT"
    assert response.headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_a_load_balancer_may_ask_for_the_head_alone(http: httpx2.Client, path: str) -> None:
    response = http.head(path)
    assert (response.status_code, response.content) == (200, b"")


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "text"}}}]
SCHEMA = {"type": "nope"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logit_bias": {"512": 1}}, "logit_bias"),  # tests/models.py: VOCAB
        ({"allowed_token_ids": [512]}, "allowed_token_ids"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"use_beam_search": True, "logprobs": True}, "logprobs"),
        ({"use_beam_search": True, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "response_format",
        ),
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_named_by_the_requests_own_field(
    real_http: httpx2.Client, change: dict[str, Any], param: str, stream: bool
) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "stream": stream, **change}
    assert refused(real_http.post("/v1/chat/completions", json=body))["param"] == param


def test_responses_have_their_own_names_for_it(real_http: httpx2.Client) -> None:
    body = {"input": "hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}
    assert refused(real_http.post("/v1/responses", json=body))["param"] == "text.format"
