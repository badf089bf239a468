"""/v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from pagechat.daemon.http import logprobs
from pagechat.daemon.http.bodies import BodyRoute
from pagechat.daemon.http.call import Call, Whole, begin, service_of
from pagechat.daemon.http.errors import STREAMED, documented
from pagechat.daemon.http.offered import reading_of
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.http.shapes import usage
from pagechat.daemon.http.streaming import DONE, Envelope, EventStream, event
from pagechat.protocol import CallPiece, Delta, Finished

router = APIRouter(route_class=BodyRoute, responses=STREAMED | documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """An answer to messages, whole or as server-sent events."""
    service = service_of(request)
    _, text = service.ready()
    reading = reading_of(body, text)
    call = await begin(request, body, [body.conversation()], body.limit, "chatcmpl", body.answers, reading)
    if body.stream:
        return EventStream(call, _Events(call, body))
    try:
        answers = await call.finished()
        return await call.written(lambda: _whole(call, answers, body))
    finally:
        call.close()


def _whole(call: Call, answers: list[Whole], body: ChatBody) -> dict[str, Any]:
    choices = [_choice(index, answer, call, body) for index, answer in enumerate(answers)]
    whole = _object(call, "chat.completion", choices) | {"usage": usage([one.end for one in answers], body.answers)}
    if body.return_token_ids:
        whole["prompt_token_ids"] = call.prompts[0]
    if body.prompt_logprobs is not None:
        whole["prompt_logprobs"] = logprobs.of_prompt(call.prompt_logprobs[0], call.bytes_of)
    return whole


def _choice(index: int, answer: Whole, call: Call, body: ChatBody) -> dict[str, Any]:
    choice = {
        "index": index,
        "message": _message(answer.end),
        "logprobs": logprobs.of_chat(answer.logprobs, call.bytes_of) if body.logprobs else None,
        "finish_reason": _reason(answer.end),
    }
    return choice | {"token_ids": answer.token_ids} if body.return_token_ids else choice


def _message(end: Finished) -> dict[str, Any]:
    calls = [_call(piece) for piece in end.calls]
    message: dict[str, Any] = {"role": "assistant", "content": end.text or (None if calls else ""), "refusal": None}
    if end.reasoning:
        message["reasoning_content"] = end.reasoning
    return message | {"tool_calls": calls} if calls else message


def _call(piece: CallPiece) -> dict[str, Any]:
    return {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": piece.arguments}}


def _reason(end: Finished) -> str:
    return "tool_calls" if end.calls and end.finish_reason == "stop" else end.finish_reason


class _Streamed:
    """One choice of a stream."""

    def __init__(self, index: int, envelope: Envelope) -> None:
        self.index = index
        self.content = envelope.texts(self.choice({"content": ""}))
        """The event of a piece of content."""

    def choices(self, told: Delta) -> list[dict[str, Any]]:
        """One for each part that is new."""
        deltas: list[dict[str, Any]] = [{"reasoning_content": told.reasoning}] if told.reasoning else []
        if told.text:
            deltas.append({"content": told.text})
        deltas += [{"tool_calls": [_call_piece(piece)]} for piece in told.calls]
        return [self.choice(delta) for delta in deltas]

    def choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _call_piece(piece: CallPiece) -> dict[str, Any]:
    if piece.id:
        return {"index": piece.index, **_call(piece)}
    return {"index": piece.index, "function": {"arguments": piece.arguments}}


class _Events:
    """The stream."""

    def __init__(self, call: Call, body: ChatBody) -> None:
        self._call, self._body = call, body
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        usage_field: dict[str, Any] = {"usage": None} if self._with_usage else {}
        whole = _object(call, "chat.completion.chunk", [])
        prompt_field: dict[str, Any] = {"prompt_token_ids": call.prompts[0]} if body.return_token_ids else {}
        self._first, self._envelope = Envelope(whole, usage_field | prompt_field), Envelope(whole, usage_field)
        self._plain = not body.logprobs and not body.return_token_ids
        self._begun: dict[int, _Streamed] = {}
        self._ends: dict[int, Finished] = {}

    def begin(self) -> bytes:
        return b""

    def told(self, index: int, message: Delta | Finished) -> bytes:
        before, one = b"", self._begun.get(index)
        if one is None:
            one = self._begun[index] = _Streamed(index, self._envelope)
            before = self._first.event(one.choice({"role": "assistant", "content": ""}))
        elif self._plain and isinstance(message, Delta) and not message.reasoning and not message.calls:
            return one.content(message.text)
        if isinstance(message, Finished):
            self._ends[index] = message
            choices = [one.choice({}, _reason(message))]
        else:
            choices = self._with_extras(one, message)
        return before + b"".join([self._envelope.event(choice) for choice in choices])

    def _with_extras(self, one: _Streamed, message: Delta) -> list[dict[str, Any]]:
        """The choices of a delta; what was asked for beside it goes with the first, or with an empty one while its text
        is held back."""
        choices = one.choices(message)
        extras: dict[str, Any] = {}
        if self._body.logprobs:
            extras["logprobs"] = logprobs.of_chat(message.logprobs, self._call.bytes_of)
        if self._body.return_token_ids:
            extras["token_ids"] = message.token_ids
        if extras:
            choices = [(choices or [one.choice({})])[0] | extras, *choices[1:]]
        return choices

    def end(self) -> bytes:
        if not self._with_usage:
            return DONE
        counted = usage([self._ends[index] for index in sorted(self._ends)], self._body.answers)
        return event(_object(self._call, "chat.completion.chunk", []) | {"usage": counted}) + DONE


def _object(call: Call, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": call.id, "object": kind, "created": call.created, "model": call.model, "choices": choices}
