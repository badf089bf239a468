"""Tools through OpenAI's client, by a tiny random model that is made to call them by grammar."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.pagechat.daemon.http.conftest import Served

MODEL = "tiny-llama"
ASK: Any = [{"role": "user", "content": "Free a block."}]
FREE: Any = {
    "type": "function",
    "function": {
        "name": "free",
        "description": "Frees it.",
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["host", "device"]}},
            "required": ["where"],
            "additionalProperties": False,
        },
    },
}
PIN: Any = {"type": "function", "function": {"name": "pin", "parameters": {"const": {"forever": True}}}}


@pytest.fixture
def client(real_client: openai.OpenAI) -> openai.OpenAI:
    return real_client


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "free"}}])
def test_a_required_call_is_made_with_arguments_of_its_schema(client: openai.OpenAI, choice: Any) -> None:
    found = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[FREE], tool_choice=choice, temperature=0, max_tokens=100
    )
    (answer,) = found.choices
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    (call,) = answer.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "free"
    assert json.loads(call.function.arguments)["where"] in ("host", "device")


def test_a_call_is_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[FREE], tool_choice="required", temperature=0, max_tokens=100, stream=True
    )
    chunks = list(stream)
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert {piece.index for piece in pieces} == {0}
    assert pieces[0].id
    functions = [piece.function for piece in pieces if piece.function is not None]
    assert [function.name for function in functions if function.name] == ["free"]
    assert len(pieces) > 2  # the name at once, the arguments piece by piece
    arguments = "".join(function.arguments or "" for function in functions)
    assert json.loads(arguments)["where"] in ("host", "device")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_a_named_tool_of_several_is_called(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "pin"}}
    found = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[FREE, PIN], tool_choice=choice, temperature=0, max_tokens=100
    )
    (call,) = found.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("pin", {"forever": True})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "free"}}])
def test_where_a_call_is_required_there_is_one_and_clients_may_say_so(client: openai.OpenAI, choice: Any) -> None:
    # langchain-openai's with_structured_output(method="function_calling") says so
    found = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[FREE, PIN], tool_choice=choice, parallel_tool_calls=False, max_tokens=100
    )
    assert len(found.choices[0].message.tool_calls or ()) == 1


@pytest.mark.parametrize("offered", [{}, {"tools": [FREE], "tool_choice": "none"}])
def test_without_tools_none_is_called_in_parallel(real: Served, offered: dict[str, Any]) -> None:
    body = {"messages": ASK, "max_tokens": 1, "parallel_tool_calls": False, **offered}
    assert httpx2.post(f"{real.url}/v1/chat/completions", json=body).status_code == 200


def test_calls_and_their_results_reach_the_template(real: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "free", "arguments": '{"where": "host"}'}}
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": "done <|im_end|>"})
    with httpx2.Client(base_url=real.url) as http:
        found = http.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
        text = http.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"]
    assert '<tool_call>\n{"name": "free", "arguments": {"where": "host"}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>tool\ndone <|im_end|><|im_end|>\n" in text
    # llama.cpp issue 26273: what a tool found is text; its <|im_end|> ends no turn (3 messages, 3 ends)
    assert found["tokens"].count(2) == 3


def test_a_template_that_takes_none_says_so(served: Served) -> None:
    with httpx2.Client(base_url=served.url) as http:
        response = http.post("/v1/chat/completions", json={"messages": ASK, "tools": [FREE]})
        assert http.post("/v1/chat/completions", json={"messages": ASK, "tools": []}).status_code == 200
        assert (
            http.post("/v1/chat/completions", json={"messages": ASK, "tools": [FREE], "tool_choice": "none"})
        ).status_code == 200
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "takes no tools" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [FREE], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [FREE], "tool_choice": "required", "guided_regex": "x"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
def test_a_wrong_field_is_named(real: Served, change: dict[str, Any], param: str) -> None:
    with httpx2.Client(base_url=real.url) as http:
        response = http.post("/v1/chat/completions", json={"messages": ASK, **change})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_a_schema_that_compiles_to_nothing_harms_nobody(real: Served) -> None:
    # CVE-2025-48944: a tool's pattern or type killed the engine
    broken = {"type": "object", "properties": {"x": {"type": "text", "pattern": "((("}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": broken}}
    body = {"messages": ASK, "tools": [tool], "tool_choice": "required"}
    with httpx2.Client(base_url=real.url, timeout=30) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 400
        assert http.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 1}).status_code == 200


def test_a_templates_variables_are_the_clients_to_set_but_its_messages_are_not(real: Served) -> None:
    # CVE-2025-62426: chat_template_kwargs replaced the server's own arguments
    with httpx2.Client(base_url=real.url) as http:

        def prompt(**variables: Any) -> int:
            body = {"messages": ASK, "max_tokens": 1, "return_token_ids": True, "chat_template_kwargs": variables}
            found = http.post("/v1/chat/completions", json=body).json()
            return len(found["prompt_token_ids"])

        plain = prompt()
        assert prompt(think=True) > plain
        assert prompt(tokenize=True) == plain
        taken = {"messages": [], "tools": ["x"], "add_generation_prompt": False}
        refused = http.post("/v1/chat/completions", json={"messages": ASK, "chat_template_kwargs": taken})
        assert refused.status_code == 400
        assert "add_generation_prompt and messages and tools" in refused.json()["error"]["message"]


NESTED: Any = {
    "$defs": {"Place": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}},
    "type": "object",
    "properties": {"home": {"$ref": "#/$defs/Place"}},
    "required": ["home"],
}


def test_references_of_a_tools_schema_lead_to_its_own_root(client: openai.OpenAI) -> None:
    other = {**NESTED, "$defs": {"Place": {"const": "elsewhere"}}}
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("save", NESTED), ("load", other))
    ]
    for name, home in (("save", {"city": "Paris"}), ("load", "elsewhere")):
        found = client.chat.completions.create(
            model=MODEL,
            messages=ASK,
            tools=tools,
            tool_choice={"type": "function", "function": {"name": name}},
            temperature=0,
            max_tokens=120,
        )
        (call,) = found.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert json.loads(call.function.arguments)["home"] == home


@pytest.mark.parametrize("written", ["", " ", "null", '"Beijing"', "[1]", "3", '{"a": 1, "b'])
def test_whatever_a_model_wrote_as_arguments_may_be_sent_back(real: Served, written: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "no such: tool", "arguments": written}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    with httpx2.Client(base_url=real.url) as http:
        response = http.post("/v1/chat/completions", json={"messages": messages, "tools": [FREE], "max_tokens": 1})
    assert response.status_code == 200, response.text


def test_a_model_may_be_told_to_call_one_tool_at_most(real: Served) -> None:
    body = {"messages": ASK, "tools": [FREE], "parallel_tool_calls": False, "max_tokens": 1}
    with httpx2.Client(base_url=real.url) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_a_grammar_binds_behind_the_reasoning_that_a_prompt_opens(real: Served) -> None:
    close = {"role": "assistant", "content": "<think>\n"}
    body = {"messages": [*ASK, close], "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 40}
    with httpx2.Client(base_url=real.url, timeout=60) as http:
        body |= {"guided_choice": ["yes", "no"], "temperature": 0}
        (choice,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    message = choice["message"]
    if choice["finish_reason"] == "length":  # it still thinks: nothing of that is content
        assert (message["content"], bool(message["reasoning_content"])) == ("", True)
    else:
        assert message["content"] in ("yes", "no")
