"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from engine.protocol import Finished
from pagechat.daemon.http import logprobs
from pagechat.daemon.http.call import Call, Whole, begin, service_of
from pagechat.daemon.http.chat_marks import Marks, check_tools, marks
from pagechat.daemon.http.errors import STREAMED, documented
from pagechat.daemon.http.parts import Called, Part, Said, Splitter
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.http.shapes import usage
from pagechat.daemon.http.streaming import DONE, EventStream, event

router = APIRouter(responses=STREAMED | documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """An answer to messages, whole or as server-sent events."""
    service = service_of(request)
    _, text = service.ready()
    check_tools(body, text)
    call = await begin(request, body, [body.conversation()], body.limit, "chatcmpl", body.answers)
    found = marks(body, call.prompts[0], text)
    if body.stream:
        return EventStream(_events(call, body, found), call.close)
    try:
        answers = await call.finished()
    finally:
        call.close()
    choices = [_choice(index, answer, call, body, found) for index, answer in enumerate(answers)]
    whole = _object(call, "chat.completion", choices) | {"usage": usage([one.end for one in answers], body.answers)}
    if body.return_token_ids:
        whole["prompt_token_ids"] = call.prompts[0]
    if body.prompt_logprobs is not None:
        whole["prompt_logprobs"] = logprobs.of_prompt(call.prompt_logprobs[0], call.bytes_of)
    return Response(msgspec.json.encode(whole), media_type="application/json")


def _choice(index: int, answer: Whole, call: Call, body: ChatBody, found: Marks) -> dict[str, Any]:
    splitter = found.splitter()
    parts = [*splitter.feed(answer.end.text), *splitter.finish()]
    choice = {
        "index": index,
        "message": _message(parts),
        "logprobs": logprobs.of_chat(answer.logprobs, call.bytes_of) if body.logprobs else None,
        "finish_reason": _reason(answer.end, splitter),
    }
    return choice | {"token_ids": answer.token_ids} if body.return_token_ids else choice


def _message(parts: list[Part]) -> dict[str, Any]:
    content = "".join(part.text for part in parts if isinstance(part, Said) and part.kind == "content")
    reasoning = "".join(part.text for part in parts if isinstance(part, Said) and part.kind == "reasoning")
    calls = [_call(part) for part in parts if isinstance(part, Called)]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message | {"tool_calls": calls} if calls else message


def _call(part: Called) -> dict[str, Any]:
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}


def _reason(end: Finished, splitter: Splitter) -> str:
    return "tool_calls" if splitter.called and end.finish_reason == "stop" else end.finish_reason


class _Streamed:
    """One choice of a stream."""

    def __init__(self, index: int, splitter: Splitter) -> None:
        self.index, self.splitter = index, splitter
        self._calls = 0

    def deltas(self, parts: list[Part]) -> list[dict[str, Any]]:
        return [self._delta(part) for part in parts]

    def choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _delta(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Said):
            return {"content" if part.kind == "content" else "reasoning_content": part.text}
        self._calls += 1
        return {"tool_calls": [{"index": self._calls - 1, **_call(part)}]}


async def _events(call: Call, body: ChatBody, found: Marks) -> AsyncIterator[bytes]:
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    usage_field: dict[str, Any] = {"usage": None} if with_usage else {}
    begun: dict[int, _Streamed] = {}
    ends: dict[int, Finished] = {}

    def chunk(*choices: dict[str, Any]) -> dict[str, Any]:
        return _object(call, "chat.completion.chunk", list(choices)) | usage_field

    async for index, message in call.said():
        if index not in begun:
            begun[index] = _Streamed(index, found.splitter())
            first = chunk(begun[index].choice({"role": "assistant", "content": ""}))
            if body.return_token_ids:
                first["prompt_token_ids"] = call.prompts[0]
            yield event(first)
        one = begun[index]
        if isinstance(message, Finished):
            ends[index] = message
            for delta in one.deltas(one.splitter.finish()):
                yield event(chunk(one.choice(delta)))
            yield event(chunk(one.choice({}, _reason(message, one.splitter))))
            continue
        choices = [one.choice(delta) for delta in one.deltas(one.splitter.feed(message.text))]
        extras: dict[str, Any] = {}
        if body.logprobs:
            extras["logprobs"] = logprobs.of_chat(message.logprobs, call.bytes_of)
        if body.return_token_ids:
            extras["token_ids"] = message.token_ids
        if extras:  # they go with the first delta, or with an empty one while its text is held back
            choices = [(choices or [one.choice({})])[0] | extras, *choices[1:]]
        for choice in choices:
            yield event(chunk(choice))
    if with_usage:
        counted = usage([ends[index] for index in sorted(ends)], body.answers)
        yield event(chunk() | {"usage": counted})
    yield DONE


def _object(call: Call, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": call.id, "object": kind, "created": call.created, "model": call.model, "choices": choices}
