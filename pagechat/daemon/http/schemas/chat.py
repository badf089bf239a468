"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.protocol.sampling import LogprobCount, TokenCount
from pagechat.daemon.generation import Conversation
from pagechat.daemon.http.schemas import tools
from pagechat.daemon.http.schemas.base import Generating, Label, Refused
from pagechat.daemon.http.schemas.body import Body, wrong
from pagechat.daemon.http.schemas.bounds import bounds
from pagechat.daemon.http.schemas.tools import (
    MAX_TOOLS,
    NamedTool,
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
    must_call,
)
from pagechat.protocol import MAX_MESSAGES

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
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    refusal: Refused = None
    audio: Refused = None
    function_call: Refused = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class ToolMessage(_Message):
    """What a tool has found."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Field(max_length=256)]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class ChatBody(Generating):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = False
    top_logprobs: Annotated[int, bounds(LogprobCount)] | None = None
    max_tokens: Annotated[int, bounds(TokenCount)] | None = None
    max_completion_tokens: Annotated[int, bounds(TokenCount)] | None = None
    """OpenAI's newer word for max_tokens."""
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    """auto is the default with tools. required, or a named tool: the answer is such a call, by grammar."""
    parallel_tool_calls: bool | None = None
    """false: one call at most; the answer ends behind it."""
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    """More variables for the model's template, like enable_thinking; none that the daemon sets itself."""
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
        required = isinstance(self.tool_choice, NamedTool) or self.tool_choice == "required"
        if required:
            if not self.tools:
                raise wrong("tool_choice", "there are no tools to choose from")
            if super().grammar() is not None:
                raise wrong("tool_choice", "an answer cannot both call a tool and follow another format")
        if self.continue_final_message and self.add_generation_prompt:
            raise wrong("add_generation_prompt", "must be false with continue_final_message")
        return self

    @property
    def token_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> list[Tool]:
        """The tools of which the answer has to call one. Raises RequestError."""
        return must_call(self.offered, self.tool_choice)

    @property
    def grammar_field(self) -> str | None:
        return "tools" if self.must_call else super().grammar_field

    def conversation(self) -> Conversation:
        """Raises RequestError."""
        return Conversation(
            messages=[for_template(message, place) for place, message in enumerate(self.messages)],
            tools=[tools.for_template(tool) for tool in self.offered] or None,
            variables=self.chat_template_kwargs or {},
            add_generation_prompt=self.add_generation_prompt,
            continue_final=self.continue_final_message,
        )


def for_template(message: Message, place: int) -> dict[str, Any]:
    """`place`: in the list, for what is said of it. Raises RequestError."""
    given = message.model_dump(include={"name", "tool_call_id", "reasoning_content"}, exclude_none=True)
    given |= {"role": "system" if message.role == "developer" else message.role, "content": plain(message.content)}
    if isinstance(message, AssistantMessage) and message.tool_calls:
        given["tool_calls"] = [tools.call_for_template(call) for call in message.tool_calls]
    return given


def plain(content: Content | None) -> str:
    """Parts become lines of one text."""
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""
