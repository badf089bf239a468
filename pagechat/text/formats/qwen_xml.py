"""Calls as tags: Qwen3-Coder and its kin. A value is text as it is, or JSON where the tool's schema asks for no string.

```
<tool_call>
<function=add>
<parameter=a>
1
</parameter>
</function>
</tool_call>
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagechat.text.formats.format import BROKEN, NAME, Read, Tool, Written, as_call, literal, schema_rule

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(rf"\s*<function=({NAME})>\s*")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>\s*(?=<parameter=|</function>)")
_END = re.compile(r"</function>\s*</tool_call>")


class QwenXml:
    opens = (OPEN,)
    closers = (CLOSE,)
    marks = (OPEN, CLOSE)
    bare = False

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """`tools`: those that are offered. Their schemas tell which values are strings."""
        self._properties = {tool.name: tool.schema.get("properties") for tool in tools}

    def of(self, tools: Sequence[Tool]) -> QwenXml:
        """The same for these tools."""
        return QwenXml(tools)

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        function = _FUNCTION.match(text, len(OPEN))
        if function is None:
            return BROKEN
        arguments: dict[str, Any] = {}
        place = function.end()
        while parameter := _PARAMETER.match(text, place):
            end = _VALUE_END.search(text, parameter.end())
            if end is None:
                return BROKEN if final else None
            written = text[parameter.end() : end.start()]
            arguments[parameter[1]] = self._value(function[1], parameter[1], written)
            place = end.end()
        whole, rest = _END.match(text, place), text[place:]
        if whole is None and not final and (rest.startswith(_NEXT) or _NEXT.startswith(rest) or _may_end(rest)):
            return None
        call = as_call(function[1], arguments)
        if whole is None or call is None:
            return BROKEN
        return Read((call,), whole.end())

    def _value(self, name: str, parameter: str, written: str) -> Any:
        properties = self._properties.get(name)
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        if _is_string(schema):
            return written
        try:
            return json.loads(written)
        except (ValueError, RecursionError):
            return written

    def head(self, text: str) -> tuple[str, int] | None:
        return None

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        rules = [f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}\n"]
        rules.append('text[suffix="\\n</parameter>\\n"]: /(?s:.*)/\n')
        for number, tool in enumerate(tools):
            rules += _rules(f"call{number}", tool, written)
        return "".join(rules)


_NEXT = "<parameter="


def _may_end(rest: str) -> bool:
    """It is a beginning of what closes a call."""
    return f"</function>{CLOSE}".startswith("".join(rest.split()))


def _rules(name: str, tool: Tool, written: Written) -> list[str]:
    schema = tool.schema
    properties = schema.get("properties")
    definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    rules: list[str] = []
    said: list[str] = []
    for number, (key, value) in enumerate(properties.items() if isinstance(properties, Mapping) else ()):
        begin, part = literal(f"<parameter={key}>\n"), f"{name}_{number}"
        if _is_string(value) and not {"enum", "const"} & set(value):
            rules.append(f"{part}: {begin} text\n")
        elif choices := _strings(value):
            rules.append(f"{part}: {begin} ({' | '.join(map(literal, choices))}) {literal(_AFTER)}\n")
        else:
            rules.append(f"{part}: {begin} {part}_value {literal(_AFTER)}\n")
            rules.append(
                schema_rule(f"{part}_value", {**definitions, **dict(value)} if isinstance(value, Mapping) else {})
            )
        said.append(part if key in schema.get("required", ()) else f"{part}?")
    before, after = literal(f"\n<function={tool.name}>\n"), literal("</function>\n")
    return [f"{name}: {written(OPEN)} {before} {' '.join(said)} {after} {written(CLOSE)}\n", *rules]


_AFTER = "\n</parameter>\n"


def _is_string(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _strings(schema: Any) -> list[str]:
    """The texts to choose from, where the schema is a choice of texts."""
    if not isinstance(schema, Mapping):
        return []
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    texts = [choice for choice in choices if isinstance(choice, str)]
    return texts if len(texts) == len(choices) else []
