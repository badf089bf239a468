"""What stands on `ask`'s command line, as the values a request needs. Raises CommandError for what cannot be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.protocol import BeamParams
from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.protocol import ChatOptions


def chat_options(**given: Any) -> ChatOptions:
    try:
        return msgspec.convert(given, ChatOptions)
    except msgspec.ValidationError as error:
        raise CommandError(str(error), exits.USAGE) from None


def beam(width: int | None, length_penalty: float | None, n: int) -> BeamParams | None:
    if width is None:
        if length_penalty is not None:
            raise CommandError("--length-penalty belongs to --beams", exits.USAGE)
        return None
    if n > width:
        raise CommandError(f"a search of {width} beams has no {n} answers", exits.USAGE)
    return BeamParams(width=width, length_penalty=1.0 if length_penalty is None else length_penalty)


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
