"""Why a grammar cannot be used."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is for whoever wrote it."""


def brief(error: str) -> str:
    """llguidance's message without the parser's state below it."""
    return error.partition("\n<")[0].strip()[:1000]
