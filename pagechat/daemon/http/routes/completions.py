"""/v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.protocol import TokenLogprobs
from pagechat.daemon.generation import Text, Tokens
from pagechat.daemon.http import logprobs
from pagechat.daemon.http.bodies import BodyRoute
from pagechat.daemon.http.call import Call, Whole, begin, service_of
from pagechat.daemon.http.errors import STREAMED, documented
from pagechat.daemon.http.schemas.completion import CompletionBody
from pagechat.daemon.http.shapes import usage
from pagechat.daemon.http.streaming import DONE, Envelope, EventStream, event
from pagechat.protocol import Delta, Finished

router = APIRouter(route_class=BodyRoute, responses=STREAMED | documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/completions", response_class=Response)
async def completions(body: CompletionBody, request: Request) -> Response:
    """What follows a text, or each of several, whole or as server-sent events."""
    prompts = body.prompts()
    # Nothing to generate still takes one token: the prompt is scored by computing it.
    limit = 1 if body.max_tokens == 0 else body.max_tokens
    call = await begin(request, body, prompts, limit, "cmpl", body.candidates)
    try:
        echoes = await asyncio.to_thread(_echoes, request, prompts) if body.echo else [""] * len(prompts)
    except BaseException:
        call.close()
        raise
    if body.stream:
        return EventStream(call, _Events(call, body, echoes))
    try:
        answers = await call.finished()
        return await call.written(lambda: _whole(call, answers, body, echoes))
    finally:
        call.close()


def _whole(call: Call, answers: list[Whole], body: CompletionBody, echoes: list[str]) -> dict[str, Any]:
    counted = usage([answer.end for answer in answers], call.answers)
    choices: list[dict[str, Any]] = []
    for prompt, echo in enumerate(echoes):
        best = _best(answers[prompt * call.answers : (prompt + 1) * call.answers], body)
        for answer in best:
            choices.append(_choice(len(choices), _text(answer, body, echo), answer.end.finish_reason))
            choices[-1] |= _extras(call, body, prompt, answer, echo)
    return _object(call, choices) | {"usage": _only_prompt(counted) if body.max_tokens == 0 else counted}


def _best(answers: list[Whole], body: CompletionBody) -> list[Whole]:
    """The n likeliest of best_of, by log probability per token; beams come ranked already."""
    if len(answers) == body.answers:
        return answers
    return sorted(answers, key=lambda answer: logprobs.mean(answer.logprobs), reverse=True)[: body.answers]


def _text(answer: Whole, body: CompletionBody, echo: str) -> str:
    return echo if body.max_tokens == 0 else echo + answer.end.text


def _extras(call: Call, body: CompletionBody, prompt: int, answer: Whole, echo: str) -> dict[str, Any]:
    """What a choice has where it was asked for."""
    extras: dict[str, Any] = {}
    if body.logprobs is not None:
        scored: Iterable[TokenLogprobs | int] = ()
        if body.echo:
            scored = chain([call.prompts[prompt][0]], call.prompt_logprobs[prompt])
        if body.max_tokens != 0:
            scored = chain(scored, answer.logprobs)
        extras["logprobs"] = logprobs.of_completion(scored, call.bytes_of, 0, top=body.logprobs > 0)
    if body.return_token_ids:
        extras |= {"token_ids": answer.token_ids, "prompt_token_ids": call.prompts[prompt]}
    if body.prompt_logprobs is not None:
        extras["prompt_logprobs"] = logprobs.of_prompt(call.prompt_logprobs[prompt], call.bytes_of)
    return extras


class _Events:
    """The stream."""

    def __init__(self, call: Call, body: CompletionBody, echoes: list[str]) -> None:
        self._call, self._body, self._echoes = call, body, echoes
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._envelope = Envelope(_object(call, []), {"usage": None} if self._with_usage else {})
        self._plain = body.logprobs is None and not body.return_token_ids and body.max_tokens != 0
        self._texts: dict[int, Callable[[str], bytes]] = {}
        """Of choices that have begun, where each event has a text only."""
        self._begun: dict[int, int] = {}
        """Choices that have begun, and the characters of each so far."""
        self._ends: dict[int, Finished] = {}

    def begin(self) -> bytes:
        return b""

    def told(self, index: int, message: Delta | Finished) -> bytes:
        if index in self._texts and isinstance(message, Delta):
            return self._texts[index](message.text)
        call, body = self._call, self._body
        echo, before = self._echoes[index // call.answers], b""
        if index not in self._begun:
            self._begun[index] = len(echo)
            before = self._envelope.event(_echoed(call, body, index, echo)) if echo else b""
            if self._plain:
                self._texts[index] = self._envelope.texts(_choice(index, "", None))
        if isinstance(message, Finished):
            self._ends[index] = message
            return before + self._envelope.event(_choice(index, "", message.finish_reason))
        if body.max_tokens == 0:
            return before
        choice = _choice(index, message.text, None)
        if body.logprobs is not None:
            offset = self._begun[index]
            choice["logprobs"] = logprobs.of_completion(message.logprobs, call.bytes_of, offset, top=body.logprobs > 0)
        if body.return_token_ids:
            choice["token_ids"] = message.token_ids
        self._begun[index] += len(message.text)
        return before + self._envelope.event(choice)

    def end(self) -> bytes:
        if not self._with_usage:
            return DONE
        counted = usage([self._ends[index] for index in sorted(self._ends)], self._call.answers)
        counted = _only_prompt(counted) if self._body.max_tokens == 0 else counted
        return event(_object(self._call, []) | {"usage": counted}) + DONE


def _echoed(call: Call, body: CompletionBody, index: int, echo: str) -> dict[str, Any]:
    """The prompt, as the first event of a choice."""
    prompt = index // call.answers
    choice = _choice(index, echo, None)
    if body.logprobs is not None:
        scored: Iterable[TokenLogprobs | int] = chain([call.prompts[prompt][0]], call.prompt_logprobs[prompt])
        choice["logprobs"] = logprobs.of_completion(scored, call.bytes_of, 0, top=body.logprobs > 0)
    return choice


def _only_prompt(counted: dict[str, Any]) -> dict[str, Any]:
    """Usage of a request that generated nothing for its client."""
    return counted | {"completion_tokens": 0, "total_tokens": counted["prompt_tokens"]}


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


def _echoes(request: Request, prompts: list[Text | Tokens]) -> list[str]:
    return [_echo(request, prompt) for prompt in prompts]


def _echo(request: Request, prompt: Text | Tokens) -> str:
    if isinstance(prompt, Text):
        return prompt.text
    _, text = service_of(request).ready()
    return text.decode(prompt)
