"""Log probabilities as OpenAI (chat, completions) and vLLM (prompt) write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from engine.protocol import TokenLogprobs
from pagechat.daemon.http.kept import KeptLogprobs

LOWEST = -9999.0
"""Written for minus infinity, which JSON does not have (vLLM's number too)."""

Bytes = Callable[[int], bytes]
"""What a token contributes to the text."""


_PIECE = 256
"""Tokens written at a time: as objects they take twenty times the memory of what is written."""


def of_chat(tokens: Iterable[TokenLogprobs], bytes_of: Bytes) -> dict[str, Any]:
    """`choice.logprobs` of a chat: a list that goes with the choice's text, or with a delta's."""
    return {
        "content": _written(
            _entry(one.token, one.logprob, bytes_of)
            | {"top_logprobs": [_entry(token, logprob, bytes_of) for token, logprob in one.top]}
            for one in tokens
        ),
        "refusal": None,
    }


def of_completion(
    tokens: Iterable[TokenLogprobs | int], bytes_of: Bytes, offset: int, *, top: bool
) -> dict[str, list[Any]]:
    """`choice.logprobs` of a completion: four lists. `offset`: of the first token's text in the whole text.

    A bare id is the first token of an echoed prompt, which nothing came before.
    """
    written: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for one in tokens:
        token = one if isinstance(one, int) else one.token
        written["tokens"].append(_name(bytes_of(token)))
        written["text_offset"].append(offset)
        offset += len(bytes_of(token).decode("utf-8", "ignore"))
        if isinstance(one, int):
            written["token_logprobs"].append(None)
            written["top_logprobs"].append(None)
        else:
            written["token_logprobs"].append(_finite(one.logprob))
            likeliest = {_name(bytes_of(token)): _finite(logprob) for token, logprob in one.top}
            written["top_logprobs"].append(likeliest if top else None)
    return written


def of_prompt(tokens: Iterable[TokenLogprobs], bytes_of: Bytes) -> msgspec.Raw:
    """vLLM's `prompt_logprobs`: for each token a mapping of ids, its own among them; null for the first token."""
    return _written(_prompt_entries(tokens, bytes_of))


def _prompt_entries(tokens: Iterable[TokenLogprobs], bytes_of: Bytes) -> Iterator[dict[str, Any] | None]:
    yield None
    for one in tokens:
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(one.top, start=1)}
        ranked[one.token] = (one.logprob, one.rank)
        yield {
            str(token): {
                "logprob": _finite(logprob),
                "rank": rank,
                "decoded_token": bytes_of(token).decode("utf-8", "replace"),
            }
            for token, (logprob, rank) in ranked.items()
        }


def _written(items: Iterator[Any]) -> msgspec.Raw:
    """A JSON array of them, made in pieces."""
    pieces: list[bytes] = []
    while piece := list(islice(items, _PIECE)):
        pieces.append(msgspec.json.encode(piece)[1:-1])
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


def mean(tokens: KeptLogprobs) -> float:
    """Of an answer, per token: what best_of ranks by."""
    return sum(_finite(one.logprob) for one in tokens) / len(tokens) if tokens else LOWEST


def _entry(token: int, logprob: float, bytes_of: Bytes) -> dict[str, Any]:
    raw = bytes_of(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}


def _name(raw: bytes) -> str:
    """A token's text; of a part of a character, its bytes (OpenAI's way), so that no two parts have one name."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
