"""What stands on `ask`'s command line, as the values a request needs. Raises CommandError for what cannot be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.protocol import BeamParams
from engine.protocol.codec import field_of
from engine.protocol.sampling import Answers, BeamWidth
from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.protocol import ChatOptions


def chat_options(**given: Any) -> ChatOptions:
    """Options by their names in the protocol, which says what each may be."""
    options: ChatOptions = _converted(given, ChatOptions)
    return options


def answers(n: int) -> int:
    """How many are wanted of the question."""
    number: int = _converted(n, Answers, "-n")
    return number


def _converted(value: Any, kind: Any, option: str = "") -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        field = field_of(str(error)) or ""
        words = str(error).partition(" - at ")[0].replace("`", "")
        raise CommandError(
            f"{option or '--' + field.replace('_', '-')}: {words[:1].lower()}{words[1:]}", exits.USAGE
        ) from None


def beam(width: int | None, length_penalty: float | None, n: int) -> BeamParams | None:
    if width is None:
        if length_penalty is not None:
            raise CommandError("--length-penalty belongs to --beams", exits.USAGE)
        return None
    if n > width:
        raise CommandError(f"a search of {width} beams has no {n} answers", exits.USAGE)
    given = {"width": _converted(width, BeamWidth, "--beams")}
    if length_penalty is not None:
        given["length_penalty"] = length_penalty
    search: BeamParams = _converted(given, BeamParams)
    return search


def read_question(words: Sequence[str]) -> str:
    if list(words) != ["-"]:
        return " ".join(words)
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"stdin is not UTF-8 text (byte {error.start})", exits.USAGE) from None
    if not text.strip():
        raise CommandError("stdin holds no question", exits.USAGE)
    return text.removesuffix("\n")
