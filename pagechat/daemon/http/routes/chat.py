"""/v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from pagechat.daemon.http import logprobs
from pagechat.daemon.http.bodies import BodyRoute
from pagechat.daemon.http.call import Call, Whole, begin, service_of
from pagechat.daemon.http.chat_marks import Marks, check_tools, marks
from pagechat.daemon.http.errors import STREAMED, documented
from pagechat.daemon.http.parts import Called, Part, Said, Splitter
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.http.shapes import usage
from pagechat.daemon.http.streaming import DONE, Envelope, EventStream, event
from pagechat.protocol import Delta, Finished

router = APIRouter(route_class=BodyRoute, responses=STREAMED | documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """An answer to messages, whole or as server-sent events."""
    service = service_of(request)
    _, text = service.ready()
    check_tools(body, text)
    call = await begin(request, body, [body.conversation()], body.limit, "chatcmpl", body.answers)
    found = marks(body, call.prompts[0], text)
    if body.stream:
        return EventStream(call, _Events(call, body, found))
    try:
        answers = await call.finished()
        return await call.written(lambda: _whole(call, answers, body, found))
    finally:
        call.close()


def _whole(call: Call, answers: list[Whole], body: ChatBody, found: Marks) -> dict[str, Any]:
    choices = [_choice(index, answer, call, body, found) for index, answer in enumerate(answers)]
    whole = _object(call, "chat.completion", choices) | {"usage": usage([one.end for one in answers], body.answers)}
    if body.return_token_ids:
        whole["prompt_token_ids"] = call.prompts[0]
    if body.prompt_logprobs is not None:
        whole["prompt_logprobs"] = logprobs.of_prompt(call.prompt_logprobs[0], call.bytes_of)
    return whole


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

    def __init__(self, index: int, splitter: Splitter, envelope: Envelope) -> None:
        self.index, self.splitter = index, splitter
        self.content = envelope.texts(self.choice({"content": ""}))
        """The event of a piece of content."""
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


class _Events:
    """The stream."""

    def __init__(self, call: Call, body: ChatBody, found: Marks) -> None:
        self._call, self._body, self._marks = call, body, found
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
            one = self._begun[index] = _Streamed(index, self._marks.splitter(), self._envelope)
            before = self._first.event(one.choice({"role": "assistant", "content": ""}))
        elif self._plain and one.splitter.passes and isinstance(message, Delta):
            return one.content(message.text)
        if isinstance(message, Finished):
            self._ends[index] = message
            choices = [one.choice(delta) for delta in one.deltas(one.splitter.finish())]
            choices.append(one.choice({}, _reason(message, one.splitter)))
        else:
            choices = self._with_extras(one, message)
        return before + b"".join([self._envelope.event(choice) for choice in choices])

    def _with_extras(self, one: _Streamed, message: Delta) -> list[dict[str, Any]]:
        """The choices of a delta; what was asked for beside it goes with the first, or with an empty one while its text
        is held back."""
        choices = [one.choice(delta) for delta in one.deltas(one.splitter.feed(message.text))]
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
