"""The bodies of /tokenize and /detokenize, shaped as vLLM's."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pagechat.daemon.generation import Conversation, Prompt, Text
from pagechat.daemon.http.schemas.base import MAX_LABEL, TokenId
from pagechat.daemon.http.schemas.body import WholeBody, wrong
from pagechat.daemon.http.schemas.chat import Message, for_template
from pagechat.protocol import MAX_MESSAGES


class TokenizeBody(WholeBody):
    model: Annotated[str, Field(max_length=MAX_LABEL)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool = True
    """Of a prompt."""
    add_generation_prompt: bool = True
    """Of messages."""
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("prompt", "send either prompt or messages")
        return self

    def text(self) -> Prompt:
        if self.prompt is not None:
            return Text(self.prompt, self.add_special_tokens)
        return Conversation(
            messages=[for_template(message, place) for place, message in enumerate(self.messages or ())],
            add_generation_prompt=self.add_generation_prompt,
        )


class DetokenizeBody(WholeBody):
    model: Annotated[str, Field(max_length=MAX_LABEL)] | None = None
    tokens: Annotated[list[TokenId], Field(max_length=2**20)]
