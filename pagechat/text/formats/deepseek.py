"""Calls of DeepSeek's models, between marks of their own (written here with | and _ for their wide letters).

```
all of them  <|tool_calls_begin|>one<|tool_calls_end|>
one, V3, R1  <|tool_call_begin|>function<|tool_sep|>add\n```json\n{"a": 1}\n```<|tool_call_end|>
one, V3.1    <|tool_call_begin|>add<|tool_sep|>{"a": 1}<|tool_call_end|>
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagechat.text.formats.format import BROKEN, NAME, Read, Tool, Written, as_call, literal, one_of
from pagechat.text.json_value import value_at


def _mark(words: str) -> str:
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


ALL, ALL_END = _mark("tool calls begin"), _mark("tool calls end")
ONE, ONE_END, SEPARATOR = _mark("tool call begin"), _mark("tool call end"), _mark("tool sep")
_HEAD = re.compile(
    rf"(?:{re.escape(ALL)})?\s*{re.escape(ONE)}(?:function{re.escape(SEPARATOR)}(?P<old>{NAME})\s*```json\s*"
    rf"|(?P<new>{NAME}){re.escape(SEPARATOR)}\s*)(?=\S)"
)
_TAIL = re.compile(rf"\s*(?:```)?\s*{re.escape(ONE_END)}")


class DeepSeek:
    opens = (ALL, ONE, ALL_END)
    closers = (ONE_END, ALL_END)
    marks = (ALL, ALL_END, ONE, ONE_END, SEPARATOR)
    bare = False

    def __init__(self, *, fenced: bool) -> None:
        """`fenced`: the template puts the arguments into a block of code."""
        self._fenced = fenced

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        if text.startswith(ALL_END):
            return Read((), len(ALL_END), silent=called)
        head = self.head(text)
        try:
            found = head and value_at(text, head[1])
            if head is None or not found:
                return BROKEN if final or head is None else None
            tail, call = _TAIL.match(text, found[1]), as_call(head[0], found[0])
        except ValueError:
            return BROKEN
        if tail is None and not final and ONE_END not in text[found[1] :]:
            return None
        return Read((call,), tail.end()) if tail and call else BROKEN

    def head(self, text: str) -> tuple[str, int] | None:
        found = _HEAD.match(text)
        return (found["old"] or found["new"], found.end()) if found else None

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        def call(tool: Tool, arguments: str) -> str:
            if self._fenced:
                name = f"{literal('function')} {written(SEPARATOR)} {literal(tool.name + _FENCE)}"
                said = f"{name} {arguments} {literal(_FENCE_END)}"
            else:
                said = f"{literal(tool.name)} {written(SEPARATOR)} {arguments}"
            return f"{written(ALL)} {written(ONE)} {said} {written(ONE_END)} {written(ALL_END)}"

        return one_of(tools, call)


_FENCE, _FENCE_END = "\n```json\n", "\n```"
