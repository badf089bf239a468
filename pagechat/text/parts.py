"""The parts of an answer."""

from __future__ import annotations

import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """What the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What it thinks before."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, or more of one that has begun."""

    index: int
    """Which of the answer's calls."""
    arguments: str
    """JSON, or the next piece of it."""
    id: str = ""
    name: str = ""
    """Of the first piece; the others have neither id nor name."""


Part = Content | Reasoning | ToolCall


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
