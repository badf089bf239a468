"""Calls of Mistral's models: a list of JSON objects behind a mark, or since 2025 a name and its arguments.

```
[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, ...]
[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]...       also with [CALL_ID]abc before [ARGS], or without [ARGS]
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagechat.text.formats.format import BROKEN, NAME, Read, Tool, Written, as_call, literal, one_of
from pagechat.text.json_value import value_at

OPEN, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(rf"\[TOOL_CALLS\]\s*({NAME})\s*(?:\[CALL_ID\][A-Za-z0-9]*)?\s*(?:\[ARGS\])?\s*(?=\{{)")
_HEAD = re.compile(rf'\[TOOL_CALLS\]\s*\[\{{"name": "({NAME})", "arguments": (?=\S)')


class Mistral:
    opens = (OPEN,)
    closers = ("]", "}")
    marks = (OPEN, ARGUMENTS, "[CALL_ID]")
    bare = False

    def __init__(self, *, named: bool) -> None:
        """`named`: the template writes a name and its arguments."""
        self._named = named

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        start = len(OPEN) + len(text[len(OPEN) :]) - len(text[len(OPEN) :].lstrip())
        try:
            if text.startswith("[", start) and not text.startswith((ARGUMENTS, "[CALL_ID]"), start):
                found = value_at(text, start)
                if found is None:
                    return BROKEN if final else None
                written = found[0]
                calls = [as_call(one.get("name"), one.get("arguments", {})) for one in written if isinstance(one, dict)]
                whole = tuple(call for call in calls if call is not None)
                return Read(whole, found[1]) if whole and len(whole) == len(written) else BROKEN
            named = _NAMED.match(text)
            if named is None:
                return BROKEN if final or "}" in text else None
            found = value_at(text, named.end())
            if found is None:
                return BROKEN if final else None
            call = as_call(named[1], found[0])
            return Read((call,), found[1]) if call else BROKEN
        except ValueError:
            return BROKEN

    def head(self, text: str) -> tuple[str, int] | None:
        found = _NAMED.match(text) or _HEAD.match(text)
        return (found[1], found.end()) if found else None

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        def call(tool: Tool, arguments: str) -> str:
            if self._named:
                return f"{written(OPEN)} {literal(tool.name)} {written(ARGUMENTS)} {arguments}"
            before = literal(f'[{{"name": "{tool.name}", "arguments": ')
            return f"{written(OPEN)} {before} {arguments} {literal('}]')}"

        return one_of(tools, call)
