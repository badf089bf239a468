"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pagechat.daemon.generation import Conversation
from pagechat.daemon.http.schemas.base import MAX_LOGPROBS, Generating, Label, Refused
from pagechat.daemon.http.schemas.body import Body, wrong

MAX_MESSAGES = 4096
MAX_PARTS = 1024


class TextPart(Body):
    type: Literal["text"]
    """Text is all that the model reads: images, sound and files are refused, and nothing is ever fetched."""
    text: str


Content = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


class _Message(Body):
    name: Annotated[str, Field(max_length=256)] | None = None
    """Who of several people speaks, for templates that read it."""


class SystemMessage(_Message):
    role: Literal["system", "developer"]
    """developer is OpenAI's newer word for system."""
    content: Content


class UserMessage(_Message):
    role: Literal["user"]
    content: Content


class AssistantMessage(_Message):
    """As it came back from here: the fields that an answer leaves null may be sent again."""

    role: Literal["assistant"]
    content: Content | None = None
    refusal: Refused = None
    audio: Refused = None
    function_call: Refused = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


class ChatBody(Generating):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """OpenAI's newer word for max_tokens."""
    add_generation_prompt: bool = True
    """Open the assistant's turn after the last message."""
    continue_final_message: bool = False
    """The answer goes on with the last message, which is the assistant's; add_generation_prompt must then be false."""
    store: Literal[False] | None = None
    """Nothing is ever stored."""
    metadata: Refused = None
    safety_identifier: Label = None
    prompt_cache_key: Label = None
    audio: Refused = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    prediction: Refused = None
    web_search_options: Refused = None
    functions: Refused = None
    function_call: Refused = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatBody:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise wrong("max_tokens", "another name of max_completion_tokens; send one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs", "only with logprobs: true")
        if self.continue_final_message and self.add_generation_prompt:
            raise wrong("add_generation_prompt", "must be false with continue_final_message")
        return self

    @property
    def token_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    def conversation(self) -> Conversation:
        return Conversation(
            messages=[for_template(message) for message in self.messages],
            add_generation_prompt=self.add_generation_prompt,
            continue_final=self.continue_final_message,
        )


def for_template(message: SystemMessage | UserMessage | AssistantMessage) -> dict[str, Any]:
    given: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": plain(message.content),
    }
    if message.name is not None:
        given["name"] = message.name
    return given


def plain(content: Content | None) -> str:
    """Parts become lines of one text."""
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""
