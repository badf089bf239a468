"""Tools that a chat offers, as the model's format has them."""

from __future__ import annotations

from engine.protocol import Grammar
from engine.protocol.sampling import MAX_GRAMMAR
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.http.schemas.base import Generating
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.text import ModelText
from pagechat.text.formats.format import Tool
from pagechat.text.reading import Reading, required_call, takes_calls


def reading_of(body: ChatBody, text: ModelText) -> Reading:
    """Raises ApiError where tools were offered to a model whose template cannot tell it of them, RequestError for a
    choice of a tool that was not."""
    if not body.offered:
        return Reading()
    tokenizer = text.tokenizer
    if not tokenizer.takes_tools:
        words = "this model's chat template takes no tools; leave them out"
        raise ApiError(400, words, param="tools", code="tools_not_supported")
    if not takes_calls(tokenizer.format):
        words = "this model's template writes tool calls in a way that is not known here"
        raise ApiError(400, words, param="tools", code="tools_not_supported")
    return Reading(
        tools=tuple(_tool(one.function.name, one.function.parameters) for one in body.offered),
        forced=bool(body.must_call),
        only_one=body.parallel_tool_calls is False,
    )


def required_grammar(body: Generating, text: ModelText) -> Grammar:
    """What an answer must be that has to call a tool. Raises RequestError."""
    assert isinstance(body, ChatBody)
    tools = [_tool(one.function.name, one.function.parameters) for one in body.must_call]
    written = required_call(text.tokenizer.format, tools, text.tokenizer.control_id)
    if len(written) > MAX_GRAMMAR:
        raise RequestError("bad_request", "tools: their schemas are too long to be required", "tools")
    return Grammar(kind="lark", text=written)


def _tool(name: str, schema: dict[str, object] | None) -> Tool:
    return Tool(name, schema or {"type": "object"})
