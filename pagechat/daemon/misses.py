"""Why a session's turn could not reuse all of the turn before, in words. Knows tokens and their text, no request."""

from __future__ import annotations

import json
from collections.abc import Callable

from engine.protocol import CacheMiss


def describe(miss: CacheMiss, block_size: int, decode: Callable[[int], str]) -> str:
    """One line. `decode`: the text of one token."""
    if miss.reason == "evicted":
        block = miss.position // block_size
        first = block * block_size
        return f"block {block} (tokens {first}..{first + block_size - 1}) of the last turn was evicted"
    before, now = (
        "the end" if token is None else json.dumps(decode(token), ensure_ascii=False)
        for token in (miss.expected, miss.found)
    )
    return f"the prompt differs from the last turn at token {miss.position}: {before} before, {now} now"
