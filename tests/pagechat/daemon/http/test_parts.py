"""An answer taken apart: reasoning, content and tool calls, however its text was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagechat.daemon.http.parts import Called, Part, Said, Splitter


def split(pieces: list[str], **how: bool) -> tuple[list[tuple[str, str]], Splitter]:
    """(kind, text) of neighbouring parts put together."""
    splitter = Splitter(**{"thinks": False, "thinking": False, "calls": False, **how})
    parts: list[Part] = []
    for piece in pieces:
        parts += splitter.feed(piece)
    parts += splitter.finish()
    found: list[tuple[str, str]] = []
    for part in parts:
        kind, text = (part.kind, part.text) if isinstance(part, Said) else (part.name, part.arguments)
        if found and isinstance(part, Said) and found[-1][0] == kind:
            text, _ = found.pop()[1] + text, None
        found.append((kind, text))
    return found, splitter


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        ("hello", {}, [("content", "hello")]),
        ("<think>\nhm\n</think>\n\nyes", {"thinks": True}, [("reasoning", "hm"), ("content", "yes")]),
        ("hm\n</think>\n\nyes", {"thinks": True, "thinking": True}, [("reasoning", "hm"), ("content", "yes")]),
        ("yes <think>", {"thinks": True}, [("content", "yes <think>")]),
        ("<think>never done", {"thinks": True}, [("reasoning", "never done")]),
        ("<think>hm</think>", {}, [("content", "<think>hm</think>")]),
        (CALL, {"calls": True}, [("add", '{"a": 1}')]),
        (CALL, {}, [("content", CALL)]),
        (f"Let me see.\n{CALL}\n{CALL}\n", {"calls": True}, [("content", "Let me see."), *[("add", '{"a": 1}')] * 2]),
        ("<tool_call>nonsense</tool_call>", {"calls": True}, [("content", "<tool_call>nonsense</tool_call>")]),
        ('<tool_call>{"name": "ad', {"calls": True}, [("content", '<tool_call>{"name": "ad')]),
        ("a < b <tool", {"calls": True}, [("content", "a < b <tool")]),
        (f"<think>x</think>{CALL}", {"thinks": True, "calls": True}, [("reasoning", "x"), ("add", '{"a": 1}')]),
    ],
)
def test_an_answer_is_taken_apart(text: str, how: dict[str, bool], expected: list[tuple[str, str]]) -> None:
    assert split([text], **how)[0] == expected
    assert split(list(text), **how)[0] == expected


@given(st.lists(st.sampled_from(["<", "think>", "</think>", "<tool_call>", "</tool_call>", "{}", " ", "\n", "ab"])))
def test_it_does_not_depend_on_where_text_is_cut(pieces: list[str]) -> None:
    how = {"thinks": True, "calls": True}
    assert split(pieces, **how)[0] == split(["".join(pieces)], **how)[0]


def test_only_what_may_become_a_mark_is_held_back() -> None:
    splitter = Splitter(thinks=False, thinking=False, calls=True)
    assert splitter.feed("one two") == [Said("content", "one two")]
    assert splitter.feed(" <tool") == []
    assert splitter.feed("box>") == [Said("content", " <toolbox>")]


def test_arguments_may_be_json_in_a_string() -> None:
    written = json.dumps({"name": "f", "arguments": '{"x": 2}'})
    (call,) = Splitter(thinks=False, thinking=False, calls=True).feed(f"<tool_call>{written}</tool_call>")
    assert isinstance(call, Called)
    assert (call.name, json.loads(call.arguments)) == ("f", {"x": 2})


def test_calls_are_told() -> None:
    def called(text: str) -> Any:
        return split([text], calls=True)[1].called

    assert called(CALL)
    assert not called("none")
