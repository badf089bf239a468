"""/v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from engine.protocol import Finished
from pagechat.daemon.generation import Text, Tokens
from pagechat.daemon.http.call import Call, begin, service_of
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.schemas.completion import CompletionBody
from pagechat.daemon.http.shapes import usage
from pagechat.daemon.http.streaming import DONE, EventStream, event

router = APIRouter(responses=documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/completions", response_class=Response)
async def completions(body: CompletionBody, request: Request) -> Response:
    """What follows a text, or each of several, whole or as server-sent events."""
    prompts = body.prompts()
    call = await begin(request, body, prompts, body.max_tokens, "cmpl", body.best_of or body.answers)
    echoes = [_echo(request, prompt) if body.echo else "" for prompt in prompts]
    if body.stream:
        return EventStream(_events(call, body, echoes), call.close)
    try:
        ends, ids = await call.finished()
    finally:
        call.close()
    choices = []
    for index, end in enumerate(ends):
        choice = _choice(index, echoes[index // body.answers] + end.text, end.finish_reason)
        if body.return_token_ids:
            choice |= {"token_ids": ids[index], "prompt_token_ids": call.prompts[index // body.answers]}
        choices.append(choice)
    whole = _object(call, choices) | {"usage": usage(ends, body.answers)}
    return Response(msgspec.json.encode(whole), media_type="application/json")


async def _events(call: Call, body: CompletionBody, echoes: list[str]) -> AsyncIterator[bytes]:
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    begun: set[int] = set()
    ends: dict[int, Finished] = {}
    usage_field: dict[str, Any] = {"usage": None} if with_usage else {}
    async for index, message in call.said():
        prompt = index // body.answers
        if index not in begun:
            begun.add(index)
            if echoes[prompt]:
                yield event(_object(call, [_choice(index, echoes[prompt], None)]) | usage_field)
        if isinstance(message, Finished):
            ends[index] = message
            choice = _choice(index, "", message.finish_reason)
        else:
            choice = _choice(index, message.text, None)
            if body.return_token_ids:
                choice["token_ids"] = message.token_ids
        yield event(_object(call, [choice]) | usage_field)
    if with_usage:
        counted = usage([ends[index] for index in sorted(ends)], body.answers)
        yield event(_object(call, []) | {"usage": counted})
    yield DONE


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _object(call: Call, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": call.id,
        "object": "text_completion",
        "created": call.created,
        "model": call.model,
        "choices": choices,
    }


def _echo(request: Request, prompt: Text | Tokens) -> str:
    if isinstance(prompt, Text):
        return prompt.text
    _, text = service_of(request).ready()
    return text.decode(prompt)
