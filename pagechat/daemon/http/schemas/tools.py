"""Tools that a chat offers, and which of them the answer must call."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.protocol import Grammar
from engine.protocol.sampling import MAX_GRAMMAR
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.parts import CALL, CALLED
from pagechat.daemon.http.schemas.body import Body

MAX_TOOLS = 128

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Function(Body):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """A call that is required follows the schema; others are the model's own."""


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: ToolName


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(Body):
    name: ToolName
    arguments: str
    """JSON."""


class ToolCall(Body):
    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


_AS_PYTHON_WRITES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance: white space as in the calls that models were trained on, and no more of it."""

Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def for_template(tool: Tool) -> dict[str, Any]:
    """What a template writes of a tool."""
    return tool.model_dump(exclude_none=True, exclude={"function": {"strict"}})


def call_for_template(call: ToolCall, place: str) -> dict[str, Any]:
    """As transformers has it: the arguments are an object. Raises RequestError."""
    try:
        arguments: Any = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        raise RequestError("bad_request", f"{place}.arguments is not JSON", f"{place}.arguments") from None
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def required_call(tools: list[Tool], choice: ToolChoice | None) -> Grammar | None:
    """What an answer must be that has to call a tool; None when it need not. Raises RequestError."""
    if choice in (None, "none", "auto"):
        return None
    callable_tools = tools
    if isinstance(choice, NamedTool):
        callable_tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not callable_tools:
            name = choice.function.name
            raise RequestError("bad_request", f"tool_choice: there is no tool {name!r}", "tool_choice.function.name")
    calls = [_call_schema(tool.function) for tool in callable_tools]
    schema = json.dumps({"anyOf": calls, "x-guidance": _AS_PYTHON_WRITES}, ensure_ascii=False)
    text = f'start: "{CALL}\\n" call "\\n{CALLED}"\ncall: %json {schema}\n'
    if len(text) > MAX_GRAMMAR:
        raise RequestError("bad_request", "tools: their schemas are too long to be required", "tools")
    return Grammar(kind="lark", text=text)


def _call_schema(function: Function) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": function.parameters or {"type": "object"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
