"""The text of an answer, taken apart as it comes: what the model thought, what it says, which tools it calls.

```
<think> reasoning </think> content <tool_call> {"name": ..., "arguments": {...}} </tool_call> content
```
These marks are those that the model's own template writes (Qwen, Hermes, SmolLM3, DeepSeek-R1 and their kin). Text is
held back only while it may still become a mark; a call comes whole. What looks like a call and is none stays text.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, Literal

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of text."""

    kind: Literal["content", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """One tool call, whole."""

    id: str
    name: str
    arguments: str
    """JSON, as OpenAI has it."""


Part = Said | Called


class Splitter:
    """Of one answer."""

    def __init__(self, *, thinks: bool, thinking: bool, calls: bool) -> None:
        """`thinks`: the template marks reasoning. `thinking`: the prompt has opened it already. `calls`: tools were
        offered."""
        self._calls = calls
        self._state: Literal["start", "reasoning", "content", "call"] = "content"
        if thinks:
            self._state = "reasoning" if thinking else "start"
        self._held = ""
        self._fresh = False
        """A mark has just ended: the line breaks after it belong to it."""
        self.called = False
        """A tool has been called."""

    @property
    def passes(self) -> bool:
        """All text to come is content, and none is held."""
        return self._state == "content" and not self._calls and not self._fresh

    @property
    def reasoning(self) -> bool:
        """The model is thinking, as far as its text was fed."""
        return self._state == "reasoning"

    def feed(self, text: str) -> list[Part]:
        """What is certain by now."""
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """The rest, once nothing more will come."""
        held, self._held = self._held, ""
        if self._state == "call":
            held = CALL + held  # it was cut off: what there is of it is text
        if self.called and not held.strip():
            return []
        kind: Literal["content", "reasoning"] = "reasoning" if self._state == "reasoning" else "content"
        return [Said(kind, held)] if held else []

    def _step(self, parts: list[Part]) -> bool:
        """Takes one thing off what is held; False when more text must come first."""
        if self._fresh:
            self._held = self._held.lstrip("\n")
            self._fresh = not self._held
        match self._state:
            case "start":
                begun = self._held.lstrip()
                if THINK.startswith(begun) and begun != THINK:
                    return False
                if begun.startswith(THINK):
                    self._held, self._state, self._fresh = begun.removeprefix(THINK), "reasoning", True
                else:
                    self._state = "content"
            case "reasoning":
                if not self._take_until(THOUGHT, "reasoning", parts):
                    return False
                self._state, self._fresh = "content", True
            case "content":
                if not self._calls:
                    parts += [Said("content", self._held)] if self._held else []
                    self._held = ""
                    return False
                if not self._take_until(CALL, "content", parts):
                    return False
                self._state = "call"
            case "call":
                written, closed, rest = self._held.partition(CALLED)
                if not closed:
                    return False
                self._held, self._state = rest, "content"
                call = _read(written)
                self.called = self.called or call is not None
                parts.append(call or Said("content", CALL + written + CALLED))
        return True

    def _take_until(self, mark: str, kind: Literal["content", "reasoning"], parts: list[Part]) -> bool:
        """Gives out what comes before the mark. White space just before it belongs to the mark."""
        before, found, rest = self._held.partition(mark)
        if found:
            self._held = rest
            before = before.rstrip()
        else:
            keep = _possible_beginning(before, mark)
            self._held = before[len(before) - keep :]
            before = before[: len(before) - keep]
        if before and not (self.called and not before.strip()):
            parts.append(Said(kind, before))
        return bool(found)


def _possible_beginning(text: str, mark: str) -> int:
    """Length of the end of `text` that may be white space and a beginning of the mark."""
    longest = next((length for length in range(len(mark) - 1, 0, -1) if text.endswith(mark[:length])), 0)
    rest = text[: len(text) - longest]
    return longest + len(rest) - len(rest.rstrip())


def _read(written: str) -> Called | None:
    """None for what is no call."""
    try:
        found: Any = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", {})
    if isinstance(arguments, str):  # some models write JSON in a string
        return Called(_new_id(), found["name"], arguments)
    if not isinstance(arguments, dict):
        return None
    return Called(_new_id(), found["name"], json.dumps(arguments, ensure_ascii=False))


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"
