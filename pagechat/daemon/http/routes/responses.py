"""/v1/responses: OpenAI's newer form of a chat, without state."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from pagechat.daemon.http.bodies import BodyRoute
from pagechat.daemon.http.call import Call, begin, service_of
from pagechat.daemon.http.errors import STREAMED, documented
from pagechat.daemon.http.schemas.responses import ResponsesBody
from pagechat.daemon.http.service import new_id
from pagechat.daemon.http.streaming import EventStream, event
from pagechat.protocol import Delta, Finished
from pagechat.text.reading import Reading

Kind = Literal["reasoning", "content"]
_EVENTS: dict[Kind, str] = {"reasoning": "response.reasoning_text", "content": "response.output_text"}
_MORE: dict[Kind, dict[str, Any]] = {"reasoning": {}, "content": {"logprobs": []}}
"""What those events have beside the text."""

router = APIRouter(route_class=BodyRoute, responses=STREAMED | documented(400, 404, 413, 429, 500, 503))


@router.post("/v1/responses", response_class=Response)
async def responses(body: ResponsesBody, request: Request) -> Response:
    """An answer to an input, whole or as named events."""
    chat = body.chat()
    service_of(request).ready()
    call = await begin(request, chat, [chat.conversation()], chat.limit, "resp", 1, Reading())
    made = _Response(call, body)
    if body.stream:
        return EventStream(call, _Events(made))

    def hear(index: int, message: Delta | Finished) -> None:
        made.told(message)

    try:
        await call.follow(hear)
    finally:
        call.close()
    return Response(msgspec.json.encode(made.ended()), media_type="application/json")


class _Response:
    """The object, as far as it is known."""

    def __init__(self, call: Call, body: ResponsesBody) -> None:
        self._call, self._body = call, body
        self._ids: dict[Kind, str] = {"reasoning": new_id("rs"), "content": new_id("msg")}
        self.texts: dict[Kind, str] = {"reasoning": "", "content": ""}
        self._end: Finished | None = None

    def told(self, message: Delta | Finished) -> list[tuple[Kind, str]]:
        """Adds what was said. Returns the new pieces of it."""
        if isinstance(message, Finished):
            self._end = message
            return []
        said: list[tuple[Kind, str]] = [("reasoning", message.reasoning), ("content", message.text)]
        for kind, text in said:
            self.texts[kind] += text
        return [(kind, text) for kind, text in said if text]

    @property
    def status(self) -> str:
        if self._end is None:
            return "in_progress"
        return "incomplete" if self._end.finish_reason == "length" else "completed"

    def part(self, kind: Kind) -> dict[str, Any]:
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": self.texts[kind]}
        return {"type": "output_text", "text": self.texts[kind], "annotations": [], "logprobs": []}

    def item(self, kind: Kind, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part(kind)]
        item = {"id": self._ids[kind], "status": status, "content": content}
        if kind == "reasoning":
            return item | {"type": "reasoning", "summary": []}
        return item | {"type": "message", "role": "assistant"}

    def begun(self) -> dict[str, Any]:
        return self._object([], None)

    def ended(self) -> dict[str, Any]:
        assert self._end is not None
        output = [self.item("content", self.status)]
        if self.texts["reasoning"]:
            output.insert(0, self.item("reasoning", "completed" if self.texts["content"] else self.status))
        usage = self._end.usage
        told = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return self._object(output, told)

    def _object(self, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        body, status = self._body, self.status
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
    """The stream: an item for what was thought, where anything was, and one for the message."""

    def __init__(self, made: _Response) -> None:
        self._made = made
        self._numbers = itertools.count()
        self._open: Kind | None = None
        self._place: dict[str, Any] = {"output_index": -1}
        """Of the item that is open."""

    def begin(self) -> bytes:
        begun = self._made.begun()
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def told(self, index: int, message: Delta | Finished) -> bytes:
        return b"".join(self._piece(kind, text) for kind, text in self._made.told(message))

    def end(self) -> bytes:
        made = self._made
        opened = b"" if self._open == "content" else self._change_to("content")
        return opened + self._close(made.status) + self._event(f"response.{made.status}", response=made.ended())

    def _piece(self, kind: Kind, text: str) -> bytes:
        opened = b"" if self._open == kind else self._change_to(kind)
        return opened + self._event(f"{_EVENTS[kind]}.delta", **self._place, delta=text, **_MORE[kind])

    def _change_to(self, kind: Kind) -> bytes:
        closed = b"" if self._open is None else self._close("completed")
        number, item = self._place["output_index"] + 1, self._made.item(kind, "in_progress")
        self._open, self._place = kind, {"item_id": item["id"], "output_index": number, "content_index": 0}
        part = self._made.part(kind) | {"text": ""}
        return (
            closed
            + self._event("response.output_item.added", output_index=number, item=item)
            + self._event("response.content_part.added", **self._place, part=part)
        )

    def _close(self, status: str) -> bytes:
        made, kind, place = self._made, self._open, self._place
        assert kind is not None
        number = place["output_index"]
        return (
            self._event(f"{_EVENTS[kind]}.done", **place, text=made.texts[kind], **_MORE[kind])
            + self._event("response.content_part.done", **place, part=made.part(kind))
            + self._event("response.output_item.done", output_index=number, item=made.item(kind, status))
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)
