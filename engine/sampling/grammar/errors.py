"""Why a grammar cannot be used."""

from __future__ import annotations

from engine.protocol import ErrorCode


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is for whoever wrote it."""

    code: ErrorCode = "bad_request"


class GrammarQueueFull(GrammarError):
    """It may well be usable, but too many others wait to be compiled."""

    code: ErrorCode = "overloaded"


def brief(error: str) -> str:
    """llguidance's message without the parser's state below it."""
    return error.partition("\n<")[0].strip()[:1000]
