"""The body of /v1/responses, as far as text without state goes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.protocol.sampling import Temperature, TokenCount, TopP
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.schemas.base import MAX_LABEL, Label, Priority, Refused, SessionName
from pagechat.daemon.http.schemas.body import Body, WholeBody, wrong
from pagechat.daemon.http.schemas.bounds import bounds
from pagechat.daemon.http.schemas.chat import MAX_PARTS, ChatBody
from pagechat.protocol import MAX_MESSAGES


class InputText(Body):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=0)] | None = None


class InputMessage(Body):
    """As it is sent, or as it came back from here."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText], Field(max_length=MAX_PARTS)]
    id: Label = None
    status: Label = None
    phase: Label = None


class ReasoningText(Body):
    type: Literal["reasoning_text"]
    text: str


class InputReasoning(Body):
    """What the assistant thought before its next message, as it came back from here."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS)]
    summary: Annotated[list[Any], Field(max_length=0)] | None = None
    encrypted_content: Refused = None
    id: Label = None
    status: Label = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=MAX_LABEL)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise wrong("text.format.schema", "belongs to type json_schema, and only there")
        return self


class TextOptions(Body):
    format: TextFormat | None = None


class ResponsesBody(WholeBody):
    model: Annotated[str, Field(max_length=MAX_LABEL)] | None = None
    input: str | Annotated[list[InputMessage | InputReasoning], Field(min_length=1, max_length=MAX_MESSAGES - 1)]
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: Annotated[int, bounds(TokenCount)] | None = None
    temperature: Annotated[float, bounds(Temperature)] | None = None
    top_p: Annotated[float, bounds(TopP)] | None = None
    text: TextOptions | None = None
    stream: bool | None = False
    store: Literal[False] | None = None
    """Nothing is ever stored, so a conversation is sent whole each time."""
    truncation: Literal["disabled"] | None = None
    """A prompt is never cut: one that is too long is an error."""
    session: SessionName | None = None
    """As in chat completions."""
    priority: Priority = None
    """As in chat completions."""
    user: Label = None
    safety_identifier: Label = None
    prompt_cache_key: Label = None
    service_tier: Literal["auto", "default"] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """Comes back with the response."""
    previous_response_id: Refused = None
    conversation: Refused = None
    background: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    """Tools are offered by /v1/chat/completions."""

    def chat(self) -> ChatBody:
        """The same request to /v1/chat/completions. Raises RequestError."""
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            messages.append({"role": "user", "content": self.input})
        else:
            messages += _messages(self.input)
        form = self.text.format if self.text else None
        return ChatBody(
            messages=messages,  # type: ignore[arg-type]
            model=self.model,
            stream=self.stream,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            session=self.session,
            priority=self.priority,
            guided_json=form.schema_ if form and form.type == "json_schema" else None,
            response_format={"type": "json_object"} if form and form.type == "json_object" else None,  # type: ignore[arg-type]
        )


def _messages(items: list[InputMessage | InputReasoning]) -> list[dict[str, Any]]:
    """Raises RequestError for reasoning that leads to no message."""
    messages: list[dict[str, Any]] = []
    thought: dict[str, Any] = {}
    for place, item in enumerate(items):
        if isinstance(item, InputReasoning):
            thought = {"reasoning_content": "\n".join(part.text for part in item.content)}
            following = items[place + 1] if place + 1 < len(items) else None
            if not isinstance(following, InputMessage) or following.role != "assistant":
                words = f"input[{place}]: reasoning comes before the assistant's message that it led to"
                raise RequestError("bad_request", words, f"input[{place}]")
        else:
            messages.append({"role": item.role, "content": _plain(item.content), **thought})
            thought = {}
    return messages


def _plain(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
