"""Calls of Gemma's models: a name and arguments in a notation of their own, with strings in quotes that are marks.

```
Gemma 4        <|tool_call>call:add{a:1,note:<|"|>two<|"|>}<tool_call|>
FunctionGemma  <start_function_call>call:add{a:1,note:<escape>two<escape>}<end_function_call>
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagechat.text.formats.format import BROKEN, NAME, Read, Tool, Written, as_call, literal
from pagechat.text.json_value import value_at

_MOST_NESTED = 32
_WORD = re.compile(r"[^,{}\[\]]+")
_KEY = re.compile(r"\s*([^\s:,{}\[\]]+)\s*:\s*")
_NUMBER = re.compile(r"-?\d+")


class Gemma:
    bare = False

    def __init__(self, opens: str, closes: str, quote: str) -> None:
        self._close, self._quote = closes, quote
        self.opens = (opens,)
        self.closers = (closes,)
        self.marks = (opens, closes, quote)
        self._head = re.compile(rf"{re.escape(opens)}\s*call:\s*({NAME})\s*(?=\{{)")

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        head = self._head.match(text)
        if head is None:
            return BROKEN
        try:
            value, end = self._value(text, head.end(), 0)
        except _NotDone:
            return BROKEN if final else None
        except ValueError:
            return BROKEN
        rest = text[end:].lstrip()
        call = as_call(head[1], value)
        if call is None or not rest.startswith(self._close):
            return BROKEN
        return Read((call,), len(text) - len(rest) + len(self._close))

    def _value(self, text: str, place: int, depth: int) -> tuple[Any, int]:
        """(the value, its end). Raises _NotDone, ValueError."""
        if depth > _MOST_NESTED:
            raise ValueError("nested too deeply")
        if text.startswith(self._quote, place):
            start = place + len(self._quote)
            end = text.find(self._quote, start)
            if end < 0:
                raise _NotDone
            return text[start:end], end + len(self._quote)
        if text.startswith('"', place):
            found = value_at(text, place)
            if found is None:
                raise _NotDone
            return found
        if text.startswith("{", place):
            return self._items(text, place, depth, "}")
        if text.startswith("[", place):
            return self._items(text, place, depth, "]")
        word = _WORD.match(text, place)
        if word is None:
            raise ValueError("a value is missing")
        return _scalar(word[0].strip()), word.end()

    def _items(self, text: str, place: int, depth: int, close: str) -> tuple[Any, int]:
        """Of an object or a list, which begins at `place`."""
        found: dict[str, Any] = {}
        items: list[Any] = []
        place += 1
        while True:
            place += len(text[place:]) - len(text[place:].lstrip())
            if place >= len(text):
                raise _NotDone
            if text[place] == close:
                return (found if close == "}" else items), place + 1
            if text[place] == ",":
                place += 1
                continue
            key = ""
            if close == "}":
                key, place = self._key(text, place)
            value, place = self._value(text, place, depth + 1)
            items.append(value)
            found[key] = value

    def _key(self, text: str, place: int) -> tuple[str, int]:
        if text.startswith((self._quote, '"'), place):
            name, end = self._value(text, place, 0)
            colon = re.compile(r"\s*:\s*").match(text, end)
            if colon is None:
                raise ValueError("a colon is missing")
            return str(name), colon.end()
        key = _KEY.match(text, place)
        if key is None:
            raise ValueError("a name is missing")
        return key[1], key.end()

    def head(self, text: str) -> tuple[str, int] | None:
        return None

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        quote = written(self._quote)
        rules = [
            f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}\n",
            f"gstring: {quote} gtext {quote}\ngtext: /[^<]*/\n",
            "gnumber: /-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?/\n",
            'gany: gstring | gnumber | "true" | "false" | "null" | glist | gobject\n',
            'glist: "[" (gany ("," gany)*)? "]"\n',
            'gobject: "{" (gkey ":" gany ("," gkey ":" gany)*)? "}"\ngkey: /[A-Za-z_][A-Za-z0-9_]{0,63}/\n',
        ]
        for number, tool in enumerate(tools):
            body = _object(tool.schema, quote)
            begin = literal(f"call:{tool.name}")
            rules.append(f"call{number}: {written(self.opens[0])} {begin} {body} {written(self._close)}\n")
        return "".join(rules)


class _NotDone(Exception):
    """The value does not end here."""


def _scalar(word: str) -> Any:
    if word in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[word]
    if _NUMBER.fullmatch(word) and len(word) < 1000:
        return int(word)
    try:
        number = float(word)
    except ValueError:
        return word
    return number if number - number == 0 else word


def _object(schema: Any, quote: str, depth: int = 0) -> str:
    """Lark: an object with the properties that the schema requires, in its order; the others are left out."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not properties or depth > 4:
        return "gobject"
    required = [name for name in properties if name in schema.get("required", ())]
    said = [f"{literal(f'{name}:')} {_of(properties[name], quote, depth)}" for name in required]
    return " ".join([literal("{"), f" {literal(',')} ".join(said), literal("}")])


def _of(schema: Any, quote: str, depth: int) -> str:
    if not isinstance(schema, Mapping):
        return "gany"
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices and all(isinstance(choice, str) and "<" not in choice for choice in choices):
        return "(" + " | ".join(f"{quote} {literal(choice)} {quote}" for choice in choices) + ")"
    match schema.get("type"):
        case "string":
            return "gstring"
        case "integer":
            return "/-?(0|[1-9][0-9]{0,17})/"
        case "number":
            return "gnumber"
        case "boolean":
            return '("true" | "false")'
        case "object":
            return _object(schema, quote, depth + 1)
        case "array":
            item = _of(schema.get("items"), quote, depth + 1)
            return f'("[" ({item} ("," {item})*)? "]")'
    return "gany"
