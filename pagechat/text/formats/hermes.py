"""Calls as JSON between two marks: Hermes, Qwen2.5 and Qwen3, SmolLM3 and their kin.

```
<tool_call>
{"name": "add", "arguments": {"a": 1}}
</tool_call>
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagechat.text.formats.format import BROKEN, NAME, Read, Tool, Written, as_call, literal, one_of
from pagechat.text.json_value import value_at

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(rf'{OPEN}\s*\{{\s*"name":\s*"({NAME})",\s*"(?:arguments|parameters)":\s*(?=\S)')


class Hermes:
    opens = (OPEN,)
    closers = (CLOSE,)
    marks = (OPEN, CLOSE)
    bare = False

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        calls: list[tuple[str, str]] = []
        place = len(OPEN)
        while True:
            place += len(text[place:]) - len(text[place:].lstrip())
            if calls and text.startswith(CLOSE, place):
                return Read(tuple(calls), place + len(CLOSE))
            if calls and not text.startswith("{", place):
                if not final and CLOSE.startswith(text[place:]):
                    return None
                return Read(tuple(calls), place)  # its closing mark was forgotten
            if place == len(text) and not final:
                return None
            try:
                found = value_at(text, place) if text.startswith("{", place) else None
                if found is None:
                    return BROKEN if final or not text.startswith("{", place) else None
                value, place = found
            except ValueError:
                return BROKEN
            call = as_call(value.get("name"), value.get("arguments", value.get("parameters", {})))
            if call is None:
                return BROKEN
            calls.append(call)

    def head(self, text: str) -> tuple[str, int] | None:
        found = _HEAD.match(text)
        return (found[1], found.end()) if found else None

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        def call(tool: Tool, arguments: str) -> str:
            after = literal("}\n")
            before = literal(f'\n{{"name": "{tool.name}", "arguments": ')
            return f"{written(OPEN)} {before} {arguments} {after} {written(CLOSE)}"

        return one_of(tools, call)
