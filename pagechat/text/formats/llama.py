"""Calls of Llama 3.x: the whole answer is JSON, several objects with a semicolon between, perhaps behind a mark.

```
{"name": "add", "parameters": {"a": 1}}; {"name": ...}
<|python_tag|>{"name": "add", "parameters": {"a": 1}}
```
An answer in JSON that names no tool which was offered is content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagechat.text.formats.format import BROKEN, NAME, Read, Tool, Written, as_call, literal, one_of
from pagechat.text.json_value import value_at

TAG = "<|python_tag|>"
_HEAD = re.compile(rf'(?:<\|python_tag\|>)?\s*\{{"name": "({NAME})", "parameters": (?=\S)')
_START = re.compile(r"(?:<\|python_tag\|>)?[\s;]*(?=\{)")


class Llama:
    opens = (TAG,)
    closers = ("}",)
    marks = (TAG, "<|eom_id|>")
    bare = True

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """`tools`: those that are offered."""
        self._names = frozenset(tool.name for tool in tools)

    def of(self, tools: Sequence[Tool]) -> Llama:
        """The same for these tools."""
        return Llama(tools)

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        start = _START.match(text)
        if start is None:
            return BROKEN
        try:
            found = value_at(text, start.end())
        except ValueError:
            return BROKEN
        if found is None:
            return BROKEN if final else None
        value, end = found
        call = as_call(value.get("name"), value.get("parameters", value.get("arguments", {})))
        return Read((call,), end) if call and call[0] in self._names else BROKEN

    def head(self, text: str) -> tuple[str, int] | None:
        found = _HEAD.match(text)
        return (found[1], found.end()) if found else None

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        def call(tool: Tool, arguments: str) -> str:
            before = literal('{"name": "' + tool.name + '", "parameters": ')
            return f"{before} {arguments} {literal('}')}"

        return one_of(tools, call)
