"""Structured output: the several ways in which clients say what an answer must follow."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.protocol import Grammar
from engine.protocol.sampling import MAX_GRAMMAR
from engine.protocol.sampling import GrammarText as ProtocolGrammarText
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.schemas.body import Body, wrong
from pagechat.daemon.http.schemas.bounds import bounds

GrammarText = Annotated[str, bounds(ProtocolGrammarText, min_length=1)]
Choices = Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(min_length=1, max_length=1024)]


class JsonSchema(Body):
    name: Annotated[str, Field(max_length=256)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    """For people; the model does not read it."""
    strict: bool | None = None
    """The schema is always followed strictly."""


class ResponseFormat(Body):
    """OpenAI's response_format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise wrong("response_format.json_schema", "belongs to type json_schema, and only there")
        return self

    def grammar(self) -> Grammar | None:
        if self.type == "json_object":
            return Grammar(kind="json_object")
        return of_schema(self.json_schema.schema_) if self.json_schema else None


class StructuredOutputs(Body):
    """One of these."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar_: Annotated[GrammarText | None, Field(alias="grammar")] = None
    json_object: Literal[True] | None = None

    def grammar(self) -> Grammar:
        """Raises RequestError unless exactly one is given."""
        given = [
            of_schema(self.json_),
            of_regex(self.regex),
            of_choice(self.choice),
            of_grammar(self.grammar_),
            Grammar(kind="json_object") if self.json_object else None,
        ]
        found = [grammar for grammar in given if grammar is not None]
        if len(found) != 1:
            raise RequestError(
                "bad_request", "structured_outputs: give exactly one of its fields", "structured_outputs"
            )
        return found[0]


def of_schema(schema: dict[str, Any] | str | None) -> Grammar | None:
    """A JSON schema, or its text."""
    if schema is None:
        return None
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    if len(text) > MAX_GRAMMAR:
        raise RequestError("bad_request", f"the JSON schema has {len(text):,} characters; {MAX_GRAMMAR:,} is the limit")
    return Grammar(kind="json_schema", text=text)


def of_regex(regex: str | None) -> Grammar | None:
    return Grammar(kind="regex", text=regex) if regex else None


def of_choice(choices: list[str] | None) -> Grammar | None:
    return Grammar(kind="choice", text=json.dumps(choices)) if choices else None


def of_grammar(text: str | None) -> Grammar | None:
    """GBNF (llama.cpp's notation, `::=`) or Lark."""
    return Grammar(kind="gbnf" if "::=" in text else "lark", text=text) if text else None
