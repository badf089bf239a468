"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from engine.protocol import Finished
from pagechat.daemon.http import logprobs
from pagechat.daemon.http.call import Call, Whole, begin
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.http.shapes import usage
from pagechat.daemon.http.streaming import DONE, EventStream, event

router = APIRouter(responses=documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """An answer to messages, whole or as server-sent events."""
    call = await begin(request, body, [body.conversation()], body.limit, "chatcmpl", body.answers)
    if body.stream:
        return EventStream(_events(call, body), call.close)
    try:
        answers = await call.finished()
    finally:
        call.close()
    whole = _object(call, "chat.completion", [_choice(i, answer, call, body) for i, answer in enumerate(answers)])
    whole["usage"] = usage([answer.end for answer in answers], body.answers)
    if body.return_token_ids:
        whole["prompt_token_ids"] = call.prompts[0]
    if body.prompt_logprobs is not None:
        whole["prompt_logprobs"] = logprobs.of_prompt(call.prompt_logprobs[0], call.bytes_of)
    return Response(msgspec.json.encode(whole), media_type="application/json")


def _choice(index: int, answer: Whole, call: Call, body: ChatBody) -> dict[str, Any]:
    choice = {
        "index": index,
        "message": {"role": "assistant", "content": answer.end.text, "refusal": None},
        "logprobs": logprobs.of_chat(answer.logprobs, call.bytes_of) if body.logprobs else None,
        "finish_reason": answer.end.finish_reason,
    }
    return choice | {"token_ids": answer.token_ids} if body.return_token_ids else choice


async def _events(call: Call, body: ChatBody) -> AsyncIterator[bytes]:
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    begun: set[int] = set()
    ends: dict[int, Finished] = {}

    def chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
        made = _object(call, "chat.completion.chunk", choices)
        if with_usage:
            made["usage"] = None
        return made

    async for index, message in call.said():
        choice: dict[str, Any] = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}
        if index not in begun:
            begun.add(index)
            first = chunk([choice | {"delta": {"role": "assistant", "content": ""}}])
            if body.return_token_ids:
                first["prompt_token_ids"] = call.prompts[0]
            yield event(first)
        if isinstance(message, Finished):
            ends[index] = message
            choice["finish_reason"] = message.finish_reason
        else:
            choice["delta"] = {"content": message.text}
            if body.logprobs:
                choice["logprobs"] = logprobs.of_chat(message.logprobs, call.bytes_of)
            if body.return_token_ids:
                choice["token_ids"] = message.token_ids
        yield event(chunk([choice]))
    if with_usage:
        counted = usage([ends[index] for index in sorted(ends)], body.answers)
        yield event(chunk([]) | {"usage": counted})
    yield DONE


def _object(call: Call, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": call.id, "object": kind, "created": call.created, "model": call.model, "choices": choices}
