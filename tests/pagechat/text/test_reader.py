# ruff: noqa: E501  a case is a line
"""An answer taken apart: reasoning, content and tool calls in every format, however its text was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagechat.text.formats.choose import choose
from pagechat.text.formats.format import Tool
from pagechat.text.parts import Content, Part, Reasoning, ToolCall
from pagechat.text.reading import Reading, reader

ADD = Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}, "t": {"type": "string"}}})
TEMPLATES = {
    "hermes": "<tool_call> </think>",
    "qwen_xml": "<tool_call> <function= </think>",
    "mistral": "[TOOL_CALLS]",
    "llama": "<|python_tag|>",
    "deepseek": "<｜tool▁call▁begin｜> </think>",
    "gemma4": "<|tool_call>",
    "functiongemma": "<start_function_call>",
    "harmony": "<|channel|> <|message|>",
}


def split(pieces: list[str], template: str, **how: Any) -> list[tuple[str, str]]:
    """(kind, text) of neighbouring parts put together."""
    one = reader(choose(lambda mark: mark in TEMPLATES[template]), Reading(**{"tools": (ADD,), **how}))
    parts: list[Part] = []
    for piece in pieces:
        parts += one.feed(piece)
    parts += one.finish()
    found: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, ToolCall):
            if part.name:
                found.append((part.name, part.arguments))
            else:
                found[-1] = (found[-1][0], found[-1][1] + part.arguments)
            continue
        kind = "reasoning" if isinstance(part, Reasoning) else "content"
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + part.text)
        else:
            found.append((kind, part.text))
    return found


def hermes(text: str = "") -> str:
    return '<tool_call>\n{"name": "add", "arguments": ' + json.dumps({"t": text}) + "}\n</tool_call>"


def deepseek(arguments: str, end: str = "<｜tool▁call▁end｜>") -> str:
    return f"<｜tool▁call▁begin｜>add<｜tool▁sep｜>{arguments}{end}"


A = ("add", '{"a": 1}')
XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=t>\n{}\n</parameter>\n</function>\n</tool_call>"
# fmt: off
CASES: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("hermes", "hello", [("content", "hello")]),
    ("hermes", "<think>\nhm\n</think>\n\nyes", [("reasoning", "hm"), ("content", "yes")]),
    ("hermes", "yes <think>", [("content", "yes <think>")]),
    ("hermes", "<think>never done", [("reasoning", "never done")]),
    ("hermes", f"Let me.\n{hermes()}\n{hermes()}\n", [("content", "Let me."), *[("add", '{"t": ""}')] * 2]),
    ("hermes", hermes("a </tool_call> b"), [("add", '{"t": "a </tool_call> b"}')]),
    ("hermes", hermes('"}</tool_call>{"'), [("add", json.dumps({"t": '"}</tool_call>{"'}))]),
    ("hermes", "<tool_call>nonsense</tool_call>", [("content", "<tool_call>nonsense</tool_call>")]),
    ("hermes", '<tool_call>{"name": "ad', [("content", '<tool_call>{"name": "ad')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>', [("content", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>')]),
    ("hermes", '<tool_call>{"name": "add", "arguments": ""}</tool_call>', [("add", "{}")]),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}', [A]),
    ("hermes", "a < b <tool", [("content", "a < b <tool")]),
    ("qwen_xml", XML.format("x\n</tool_call> y"), [("add", json.dumps({"a": 1, "t": "x\n</tool_call> y"}))]),
    ("qwen_xml", "hi\n" + XML.format("12"), [("content", "hi"), ("add", '{"a": 1, "t": "12"}')]),
    ("qwen_xml", "<tool_call>\n<function=add>\n<parameter=a>\n1", [("content", "<tool_call>\n<function=add>\n<parameter=a>\n1")]),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 1}}]', [A, A]),
    ("mistral", 'ok[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add{"a": 1}', [("content", "ok"), A, A]),
    ("mistral", '[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"t": "}]"}', [("add", '{"t": "}]"}')]),
    ("mistral", "[TOOL_CALLS][{]", [("content", "[TOOL_CALLS][{]")]),
    ("llama", '{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 1}}', [A, A]),
    ("llama", '<|python_tag|>{"name": "add", "parameters": {"t": "}"}}', [("add", '{"t": "}"}')]),
    ("llama", '{"name": "Bob", "parameters": {}}', [("content", '{"name": "Bob", "parameters": {}}')]),
    ("llama", '{"a": 1', [("content", '{"a": 1')]),
    ("deepseek", "<｜tool▁calls▁begin｜>" + deepseek(A[1]) * 2 + "<｜tool▁calls▁end｜>", [A, A]),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [A]),
    ("deepseek", deepseek("{oops}"), [("content", deepseek("{oops}"))]),
    ("gemma4", 'ok<|tool_call>call:add{a:1,t:<|"|>x, "y"}<|"|>}<tool_call|>', [("content", "ok"), ("add", json.dumps({"a": 1, "t": 'x, "y"}'}))]),
    ("gemma4", '<|tool_call>call:add{a:[1,{b:true}]}<tool_call|>', [("add", '{"a": [1, {"b": true}]}')]),
    ("gemma4", "<|tool_call>call:add{a:", [("content", "<|tool_call>call:add{a:")]),
    ("functiongemma", "<start_function_call>call:add{t:<escape>x<escape>}<end_function_call>", [("add", '{"t": "x"}')]),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes", [("reasoning", "hm"), ("content", "yes")]),
    ("harmony", '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>', [A]),
    ("harmony", "plain", [("content", "plain")]),
]
# fmt: on


@pytest.mark.parametrize(("template", "text", "expected"), CASES)
def test_an_answer_is_taken_apart_in_every_cut(template: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert split([text], template) == expected
    assert split(list(text), template) == expected
    for place in range(len(text)):
        assert split([text[:place], text[place:]], template) == expected


@given(st.lists(st.sampled_from(["<", "think>", "</think>", "<tool_call>", "</tool_call>", "{}", " ", "\n", "ab"])))
def test_it_does_not_depend_on_where_text_is_cut(pieces: list[str]) -> None:
    assert split(pieces, "hermes") == split(["".join(pieces)], "hermes")


def test_only_what_may_become_a_mark_is_held_back() -> None:
    one = reader(choose(lambda mark: mark in "<tool_call>"), Reading(tools=(ADD,)))
    assert one.feed("one two") == [Content("one two")]
    assert one.feed(" <tool") == []
    assert one.feed("box>") == [Content(" <toolbox>")]


def test_a_forced_call_comes_by_name_at_once_and_then_in_pieces() -> None:
    one = reader(choose(lambda mark: mark in "<tool_call>"), Reading(tools=(ADD,), forced=True))
    assert one.feed('<tool_call>\n{"name": "add", "argum') == []
    (begun,) = one.feed('ents": {')[:1]
    assert isinstance(begun, ToolCall)
    assert begun.name == "add"
    assert one.feed('"t": "a </tool_call>') == [ToolCall(0, '"t": "a </tool_call>')]
    assert one.feed(' b"}}\n</tool_call>') == [ToolCall(0, ' b"}')]
    assert one.finish() == []


def test_one_call_at_most_where_that_was_asked() -> None:
    assert split([hermes() + hermes()], "hermes", only_one=True) == [("add", '{"t": ""}')]
