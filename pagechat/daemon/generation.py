"""What a request wants, whichever door it came through. ZeroMQ clients and HTTP clients meet here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.protocol import BeamParams
from pagechat.protocol import ChatMessage, ChatOptions
from pagechat.text.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for the model's chat template."""

    messages: Sequence[Mapping[str, Any]]
    """Each with "role" and "content", and what else the template reads ("tool_calls", "name", ...)."""
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    """Open the assistant's turn at the end."""
    continue_final: bool = False
    """Leave the last message open, so that the answer goes on with it (prefill)."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """More names for the template."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it is; what spells a control token in it is one."""

    text: str
    add_special_tokens: bool = True
    """Put the tokenizer's own first tokens (BOS) before it, unless it begins with them."""


def for_template(message: ChatMessage) -> dict[str, Any]:
    """A message of a ZeroMQ client as templates read it."""
    given = {"role": message.role, "content": message.content}
    return {**given, "reasoning_content": message.reasoning} if message.reasoning else given


Tokens = Sequence[int]
"""Token ids."""

Prompt = Conversation | Text | Tokens

SMALL_PROMPT = 32 * 2**10
"""Characters, or token ids."""
_PART = 16
"""Characters that take a template as long as one more message or field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Answers to one prompt."""

    request_id: str
    """Chosen by whoever asks, unique among its requests in flight."""
    session: str
    prompt: Prompt
    options: ChatOptions = field(default_factory=ChatOptions)
    keep: bool = False
    n: int = 1
    beam: BeamParams | None = None
    salt: bytes = b""
    """Cached blocks are shared with requests of the same salt only."""
    tenant: str = ""
    """The label of the API key it came with."""
    priority: int = 0
    """The lower number is served first."""
    with_tokens: bool = False
    """Deltas tell the token ids behind their text, the one that ended the answer included."""
    reading: Reading | None = None
    """How the answers to token ids are taken apart: None: not at all. Those to a conversation always are."""


def is_large(prompt: Prompt) -> bool:
    """It takes long to make token ids of it; told without a look at much of it."""
    if not isinstance(prompt, Conversation):
        return len(prompt.text if isinstance(prompt, Text) else prompt) > SMALL_PROMPT
    size, rest = 0, [prompt.messages, prompt.tools, prompt.variables]
    while rest and size <= SMALL_PROMPT:
        value: Any = rest.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            size += _PART
            rest += value.values()
        elif isinstance(value, list | tuple):
            size += _PART
            rest += value
    return size > SMALL_PROMPT
