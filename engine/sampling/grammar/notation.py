"""Grammars in llguidance's own notation, and the bounds it keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.protocol import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""llguidance's own for the rest. A lexer state takes up to 2 kB: a grammar takes 100 MB at most."""

_JSON: JsonCompileOptions = {"whitespace_pattern": r"[ \t\n\r]{1,32}"}
"""Between the parts of a JSON text. Without an end, models at temperature 0 may write blanks for ever."""


def in_llguidance(grammar: Grammar) -> str:
    """The grammar in llguidance's own notation. Raises ValueError where that shows that it is none; not all does."""
    text = _answer(grammar)
    if not grammar.around:
        return text
    answer: dict[str, Any] = json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": text}
    return json.dumps({"grammars": [{"lark_grammar": grammar.around}, {**answer, "name": "answer"}]})


def _answer(grammar: Grammar) -> str:
    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(grammar.text, defaults=_JSON)
    if grammar.kind == "json_object":
        return LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=_JSON)
    if grammar.kind == "choice":
        choices = msgspec.json.decode(grammar.text, type=list[str])  # its error is a ValueError, too
        if not any(choices):
            raise ValueError("there is no text to choose; give a JSON array of strings")
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, choices))}")
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    return LLMatcher.grammar_from_lark(grammar.text if grammar.kind == "lark" else _lark_of_gbnf(grammar.text))


def _lark_of_gbnf(text: str) -> str:
    # Not llguidance's any_to_lark, whose search for signs of Lark takes minutes over 100,000 empty lines.
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the converter raises plain Exception; RecursionError where parentheses lie too deep
        raise ValueError(str(error)) from error
