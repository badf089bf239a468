"""Which marks the model's template uses, so how its answers are taken apart."""

from __future__ import annotations

from dataclasses import dataclass

from pagechat.daemon.http.parts import CALL, THINK, THOUGHT, Splitter
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.text import ModelText

_TAIL = 8
"""Tokens at the end of a prompt that tell whether it opens the reasoning."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one request."""

    thinks: bool
    thinking: bool
    """The prompt ends inside the reasoning."""
    calls: bool

    def splitter(self) -> Splitter:
        return Splitter(thinks=self.thinks, thinking=self.thinking, calls=self.calls)


def check_tools(body: ChatBody, text: ModelText) -> None:
    """Raises ApiError where tools were offered to a model whose template cannot tell it of them."""
    if not body.offered:
        return
    if not text.tokenizer.takes_tools:
        raise ApiError(
            400, "this model's chat template takes no tools; leave them out", param="tools", code="tools_not_supported"
        )
    if not text.tokenizer.writes(CALL):
        raise ApiError(
            400,
            f"this model's template does not write tool calls as {CALL}, the one way that is read here",
            param="tools",
            code="tools_not_supported",
        )


def marks(body: ChatBody, prompt: list[int], text: ModelText) -> Marks:
    """For the answers to a prompt."""
    thinks = text.tokenizer.writes(THOUGHT)
    return Marks(
        thinks=thinks,
        thinking=thinks and text.decode(prompt[-_TAIL:]).rstrip().endswith(THINK),
        calls=bool(body.offered),
    )
