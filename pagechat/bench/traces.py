"""Request traces: files of public traces, and lengths drawn like those of two well-known data sets.

A trace is lengths, arrival times and which prompts begin alike; it has no text. Three layouts are read, told
apart by their first bytes: Azure LLM inference CSV (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake JSONL
(`hash_ids`, one for each 512-token block of the prompt; equal ids are equal prefixes) and ShareGPT JSON
(conversations of turns).
"""

from __future__ import annotations

import csv
import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

HASHED_TOKENS = 512
"""Tokens of the prompt that one of Mooncake's hash ids stands for."""

Layout = Literal["azure", "mooncake", "sharegpt", "drawn"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class TraceError(ValueError):
    """Not a trace; the message is one line for people, with the line number."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request, in tokens."""

    arrival_s: float
    prompt: int
    output: int
    stream: int
    """What its tokens are: requests of the same stream have the same token at the same position."""
    hash_ids: tuple[int, ...] = ()
    """Names of the prompt's blocks of `HASHED_TOKENS`, the last one perhaps not full; these go before the stream."""
    follows: int | None = None
    """Index of the request whose end it waits for: the turn before."""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    layout: Layout
    requests: list[TraceRequest]
    lengths: str
    """Where the token counts come from, in a few words."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return max(request.prompt + request.output for request in self.requests)

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output for request in self.requests)

    def first(self, count: int) -> Trace:
        """The first `count` requests. What one follows stands before it, so none is left waiting."""
        return dataclasses.replace(self, requests=self.requests[:count])

    def repeats(self) -> bool:
        """True when prompts may begin alike, so that a prefix cache has something to find."""
        streams = {request.stream for request in self.requests}
        return len(streams) < len(self.requests) or any(request.hash_ids for request in self.requests)

    def reusable_share(self) -> float | None:
        """Share of all hash ids that stood in an earlier request already; None without hash ids."""
        ids = sum(len(request.hash_ids) for request in self.requests)
        distinct = {name for request in self.requests for name in request.hash_ids}
        return 1 - len(distinct) / ids if ids else None


def find_trace(name: str, count_tokens: Callable[[str], int] | None = None) -> Trace:
    """The trace in the file `name`, or drawn when `name` is one of `DRAWN`. Raises TraceError."""
    return draw(name) if name in DRAWN else read_trace(Path(name), count_tokens)


def read_trace(path: Path, count_tokens: Callable[[str], int] | None = None) -> Trace:
    """`count_tokens` tells the tokens of a ShareGPT text; without it a token is taken to be four bytes of UTF-8.

    Requests come in the order of their arrival. Raises TraceError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise TraceError(f"cannot read {str(path)!r}: {reason}") from None
    beginning = text[:4096].lstrip()
    layout: Layout
    try:
        if beginning.startswith("["):
            layout, requests = "sharegpt", list(_sharegpt(text, count_tokens or estimate_tokens))
        elif beginning.startswith("{"):
            layout, requests = "mooncake", list(_mooncake(text))
        elif beginning.upper().startswith("TIMESTAMP"):
            layout, requests = "azure", list(_azure(text))
        else:
            raise TraceError("neither Azure CSV, nor Mooncake JSONL, nor ShareGPT JSON")
    except TraceError as error:
        raise TraceError(f"{str(path)!r} {error}") from None
    if not requests:
        raise TraceError(f"{str(path)!r} has no requests")
    if layout != "sharegpt":  # whose order matters: a turn follows the one before
        requests.sort(key=lambda request: request.arrival_s)
    lengths = "as recorded"
    if layout == "sharegpt":
        lengths = "of its tokenizer" if count_tokens else "estimated: one token is four bytes of UTF-8"
    return Trace(path.name, layout, requests, lengths)


def estimate_tokens(text: str) -> int:
    """Four bytes of UTF-8 a token, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


# -- layouts -----------------------------------------------------------------------------------


def _azure(text: str) -> Iterator[TraceRequest]:
    rows = csv.DictReader(text.splitlines())
    start: datetime | None = None
    for number, row in enumerate(rows, 2):
        try:
            # Seven digits of a second; Python's datetime has six.
            arrival = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise TraceError(f"line {number}: not TIMESTAMP, ContextTokens, GeneratedTokens") from None
        start = start or arrival
        yield _request(number, (arrival - start).total_seconds(), prompt, output, number)


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=2**53)]
    input_length: Count
    output_length: Count
    hash_ids: tuple[Count, ...]


def _mooncake(text: str) -> Iterator[TraceRequest]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"line {number}: {error}") from None
        if len(row.hash_ids) != -(-row.input_length // HASHED_TOKENS):
            raise TraceError(
                f"line {number}: {len(row.hash_ids)} hash ids for {row.input_length} tokens, one is {HASHED_TOKENS}"
            )
        yield _request(number, row.timestamp / 1000, row.input_length, row.output_length, number, row.hash_ids)


class _Turn(msgspec.Struct, frozen=True):
    speaker: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[_Turn]


def _sharegpt(text: str, count_tokens: Callable[[str], int]) -> Iterator[TraceRequest]:
    """Each answer is a request; its prompt is the whole conversation before it."""
    try:
        conversations = msgspec.json.decode(text, type=list[_Conversation])
    except msgspec.DecodeError as error:
        raise TraceError(f"is not in ShareGPT layout: {error}") from None
    index = 0
    for number, conversation in enumerate(conversations, 1):
        before, follows = 0, None
        for turn in conversation.conversations:
            tokens = count_tokens(turn.value)
            if turn.speaker in ("gpt", "chatgpt", "assistant", "bing", "bard") and before and tokens:
                yield _request(number, 0.0, before, tokens, number, follows=follows)
                follows = index
                index += 1
            before += tokens


def _request(
    number: int,
    arrival_s: float,
    prompt: int,
    output: int,
    stream: int,
    hash_ids: tuple[int, ...] = (),
    follows: int | None = None,
) -> TraceRequest:
    if not (0 < prompt < 2**31 and 0 < output < 2**31):
        raise TraceError(f"line {number}: {prompt} prompt and {output} generated tokens; both are 1 or more")
    return TraceRequest(arrival_s, prompt, output, stream, hash_ids, follows)


# -- drawn lengths -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """Two log-normal distributions of lengths, after the PagedAttention paper (SOSP 2023), section 6.1."""

    prompt_mean: float
    output_mean: float
    prompt_sigma: float
    output_sigma: float
    """Standard deviation of the logarithm: how long the tail is."""
    longest: int = 2048
    """Prompt and output together stay below this, the context of the paper's models."""


DRAWN = {
    "sharegpt-like": Drawn(168, 361, 1.1, 0.9),
    "alpaca-like": Drawn(19, 58.5, 0.6, 0.9),
}
"""With what is too long left out, their means are the paper's: 161 and 338 tokens (ShareGPT), 19 and 58 (Alpaca).
The spreads are chosen by eye after its Figure 11, where ShareGPT's lengths vary widely."""


def draw(name: str, count: int = 2000, seed: int = 0) -> Trace:
    """`count` requests with lengths of a `DRAWN` distribution, ten a second; the seed makes them the same each time."""
    lengths, source = DRAWN[name], random.Random(seed)  # noqa: S311 (lengths, no secrets)
    requests: list[TraceRequest] = []
    while len(requests) < count:
        prompt = _log_normal(source, lengths.prompt_mean, lengths.prompt_sigma)
        output = _log_normal(source, lengths.output_mean, lengths.output_sigma)
        if prompt + output <= lengths.longest:
            requests.append(TraceRequest(len(requests) / 10, prompt, output, len(requests)))
    return Trace(name, "drawn", requests, f"drawn from log-normal distributions, seed {seed}")


def _log_normal(source: random.Random, mean: float, sigma: float) -> int:
    return max(1, round(source.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))
