"""Tools that a chat offers, and which of them the answer must call."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from pagechat.daemon.errors import RequestError
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
    name: Annotated[str, Field(min_length=1, max_length=256)]
    """Models also call tools that there are not."""
    arguments: str
    """JSON."""


class ToolCall(Body):
    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


def for_template(tool: Tool) -> dict[str, Any]:
    """What a template writes of a tool."""
    return tool.model_dump(exclude_none=True, exclude={"function": {"strict"}})


def call_for_template(call: ToolCall) -> dict[str, Any]:
    """As transformers has it: the arguments are an object. Models write others, and calls are cut off: what is none
    becomes the one argument of one, so that the model reads what it wrote and no template fails on it."""
    written = call.function.arguments
    try:
        arguments: Any = json.loads(written) if written.strip() else {}
    except (ValueError, RecursionError):
        arguments = {"arguments": written}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def must_call(tools: list[Tool], choice: ToolChoice | None) -> list[Tool]:
    """The tools of which the answer has to call one; none where it need not. Raises RequestError."""
    if choice in (None, "none", "auto"):
        return []
    if not isinstance(choice, NamedTool):
        return tools
    name = choice.function.name
    found = [tool for tool in tools if tool.function.name == name]
    if not found:
        raise RequestError("bad_request", f"tool_choice: there is no tool {name!r}", "tool_choice.function.name")
    return found
