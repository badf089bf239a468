"""/v1/responses: OpenAI's newer form of a chat, without state."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from engine.protocol import Delta, Finished
from pagechat.daemon.http.call import Call, begin, service_of
from pagechat.daemon.http.chat_marks import Marks, marks
from pagechat.daemon.http.errors import STREAMED, documented
from pagechat.daemon.http.parts import Part, Said
from pagechat.daemon.http.schemas.responses import ResponsesBody
from pagechat.daemon.http.service import new_id
from pagechat.daemon.http.streaming import EventStream, event

router = APIRouter(responses=STREAMED | documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/responses", response_class=Response)
async def responses(body: ResponsesBody, request: Request) -> Response:
    """An answer to an input, whole or as named events."""
    chat = body.chat()
    _, text = service_of(request).ready()
    call = await begin(request, chat, [chat.conversation()], chat.limit, "resp", 1)
    made = _Response(call, body)
    found = marks(chat, call.prompts[0], text)
    if body.stream:
        return EventStream(call, _Events(made, found))
    try:
        (answer,) = await call.finished()
    finally:
        call.close()
    splitter = found.splitter()
    made.take([*splitter.feed(answer.end.text), *splitter.finish()])
    return Response(msgspec.json.encode(made.ended(answer.end)), media_type="application/json")


class _Response:
    """The object, as far as it is known."""

    def __init__(self, call: Call, body: ResponsesBody) -> None:
        self._call, self._body = call, body
        self.message_id = new_id("msg")
        self.text = self.reasoning = ""

    def take(self, parts: list[Part]) -> list[str]:
        """Adds what was said. Returns the pieces that belong to the message."""
        pieces = []
        for part in parts:
            if isinstance(part, Said) and part.kind == "reasoning":
                self.reasoning += part.text
            elif isinstance(part, Said):
                self.text += part.text
                pieces.append(part.text)
        return pieces

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def message(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        return {
            "id": self.message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def begun(self) -> dict[str, Any]:
        return self._object("in_progress", [], None)

    def ended(self, end: Finished) -> dict[str, Any]:
        status = self.status(end)
        output = [self.message(status)]
        if self.reasoning:
            thought = {"type": "reasoning_text", "text": self.reasoning}
            output.insert(0, {"id": new_id("rs"), "type": "reasoning", "summary": [], "content": [thought]})
        usage = {
            "input_tokens": end.usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": end.usage.cached_tokens},
            "output_tokens": end.usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": end.usage.prompt_tokens + end.usage.completion_tokens,
        }
        return self._object(status, output, usage)

    @staticmethod
    def status(end: Finished) -> str:
        return "incomplete" if end.finish_reason == "length" else "completed"

    def _object(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        body = self._body
        return {
            "id": self._call.id,
            "object": "response",
            "created_at": self._call.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._call.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "tool_choice": "auto",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": usage,
        }


class _Events:
    """The stream."""

    def __init__(self, made: _Response, found: Marks) -> None:
        self._made, self._splitter = made, found.splitter()
        self._numbers = itertools.count()
        self._place = {"item_id": made.message_id, "output_index": 0, "content_index": 0}
        self._end: Finished | None = None

    def begin(self) -> bytes:
        made = self._made
        return (
            self._event("response.created", response=made.begun())
            + self._event("response.in_progress", response=made.begun())
            + self._event("response.output_item.added", output_index=0, item=made.message("in_progress"))
            + self._event("response.content_part.added", **self._place, part=made.part())
        )

    def told(self, index: int, message: Delta | Finished) -> bytes:
        if isinstance(message, Finished):
            self._end = message
            pieces = self._made.take(self._splitter.finish())
        else:
            pieces = self._made.take(self._splitter.feed(message.text))
        return b"".join(
            self._event("response.output_text.delta", **self._place, delta=piece, logprobs=[]) for piece in pieces
        )

    def end(self) -> bytes:
        made, end = self._made, self._end
        assert end is not None
        status = made.status(end)
        return (
            self._event("response.output_text.done", **self._place, text=made.text, logprobs=[])
            + self._event("response.content_part.done", **self._place, part=made.part())
            + self._event("response.output_item.done", output_index=0, item=made.message(status))
            + self._event(f"response.{status}", response=made.ended(end))
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)
