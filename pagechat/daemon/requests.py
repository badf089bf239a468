"""The requests in flight: whose they are, what their answer is so far. Pure book-keeping, no socket.

A client names its requests; the engine sees other, random names, so no client can collide with another's or
reuse one whose abort is still under way.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from engine.protocol import FinishReason, Message, TokenLogprobs, TokenOutput
from pagechat.daemon.generation import Generation
from pagechat.protocol import Finished, Timing, Usage
from pagechat.text.answer import NOTHING, AnswerText, Piece


class Receiver(Protocol):
    """Who asked. Receivers that compare equal are one: they share the names of their requests."""

    def send(self, message: Message) -> bool:
        """Takes a message without waiting; False when nobody is there to read it and the request is dropped."""
        ...

    def __hash__(self) -> int: ...


@dataclass(slots=True, eq=False)
class Answer:
    """One of a request's answers."""

    index: int
    text: AnswerText | None = None
    """None until the engine has been given the request."""
    tokens: int = 0
    reasoning_tokens: int = 0
    """Those before the one that ended the reasoning."""
    last_token: float | None = None
    """When its newest tokens came (time.monotonic)."""
    score: float | None = None
    open: bool = True
    """The client has not been told that it finished."""
    untold: list[int] = field(default_factory=list)
    """Tokens since the last delta, for requests that want their ids."""
    untold_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Theirs, for requests that want them."""
    engine_done: bool = False
    """The engine has told its last token."""

    def take(self, output: TokenOutput, stop_token_ids: frozenset[int]) -> tuple[Piece, FinishReason | None]:
        """The engine's next tokens as (what is new, why the answer is complete or None). A stop string completes it
        before the engine knows."""
        assert self.text is not None
        self.tokens += len(output.tokens)
        self.score = output.score
        tokens, logprobs = output.tokens, output.logprobs
        if output.finish_reason == "stop" and tokens and tokens[-1] in stop_token_ids:
            tokens, logprobs = tokens[:-1], logprobs[:-1]  # the model's full stop, not its text
        self.untold_logprobs += logprobs
        piece = self.text.feed(tokens)
        if self.text.reasoning:
            self.reasoning_tokens = self.tokens
        reason = output.finish_reason
        if reason is not None:
            piece += self.text.finish()
        return piece, "stop" if self.text.stopped else reason


@dataclass(slots=True, eq=False)
class Request:
    """One request from its arrival to its last message."""

    receiver: Receiver
    wants: Generation
    engine_id: str = field(default_factory=lambda: secrets.token_hex(16))
    received: float = field(default_factory=time.monotonic)
    preparing: asyncio.Task[None] | None = None
    """Waits for the engine and tokenizes; the request is not with the engine before it is done."""
    started: bool = False
    """The engine has been given the request."""
    before: int = -1
    """The newest sequence that had blocks then: later ones of its session are its own."""
    answers: list[Answer] = field(init=False)
    priority: int = field(init=False)
    """The one it came with, or was given since."""
    stop_token_ids: frozenset[int] = frozenset()
    prompt: tuple[int, ...] = ()
    """Token ids, once the engine has been given the request."""
    cached_tokens: int = 0
    first_token: float | None = None
    prefill_s: float | None = None
    """Of that, the seconds since the engine began with the prompt; the others it waited. None for beams."""
    miss: str | None = None
    """Why the turn could not reuse all of the session's last one, in words."""
    miss_position: int | None = None

    def __post_init__(self) -> None:
        self.answers = [Answer(index) for index in range(self.wants.n)]
        self.priority = self.wants.priority

    @property
    def client_request_id(self) -> str:
        return self.wants.request_id

    @property
    def open_answers(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.open]

    @property
    def engine_works(self) -> bool:
        """The engine still computes tokens that nobody will read once all answers have finished here."""
        return self.started and not all(answer.engine_done for answer in self.answers)

    @property
    def completion_tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    def take(self, answer: Answer, output: TokenOutput, now: float) -> tuple[Piece, FinishReason | None]:
        """The engine's next tokens of one of the answers as (what is new, why it is complete or None). Tokens of an
        answer that has finished here are nothing new. `now`: time.monotonic."""
        answer.engine_done = output.finish_reason is not None
        if output.tokens and self.first_token is None:
            self.first_token, self.prefill_s = now, output.prefill_s
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        if not answer.open:
            return NOTHING, None
        if self.wants.with_tokens:
            answer.untold += output.tokens
        return answer.take(output, self.stop_token_ids)

    def finished(self, answer: Answer, reason: FinishReason) -> Finished:
        """The last message of an answer that ends well."""
        answer.open = False
        now = time.monotonic()
        whole = answer.text.whole if answer.text is not None else NOTHING
        return Finished(
            request_id=self.client_request_id,
            text=whole.text,
            reasoning=whole.reasoning,
            calls=whole.calls,
            finish_reason=reason,
            usage=Usage(
                prompt_tokens=len(self.prompt),
                cached_tokens=self.cached_tokens,
                completion_tokens=answer.tokens,
                reasoning_tokens=answer.reasoning_tokens,
            ),
            timing=Timing(
                ttft_s=self.first_token - self.received if self.first_token is not None else None,
                total_s=now - self.received,
            ),
            index=answer.index,
            score=answer.score,
            miss=self.miss,
            miss_position=self.miss_position,
        )


class Requests:
    """All requests in flight, found by either name."""

    def __init__(self) -> None:
        self._by_engine: dict[str, Request] = {}
        self._by_receiver: dict[Receiver, dict[str, Request]] = {}

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_engine.values()))

    def __len__(self) -> int:
        return len(self._by_engine)

    def add(self, request: Request) -> None:
        self._by_engine[request.engine_id] = request
        self._by_receiver.setdefault(request.receiver, {})[request.client_request_id] = request

    def remove(self, request: Request) -> None:
        """No error when it has gone already."""
        if self._by_engine.pop(request.engine_id, None) is not None:
            theirs = self._by_receiver[request.receiver]
            del theirs[request.client_request_id]
            if not theirs:
                del self._by_receiver[request.receiver]

    def of_engine(self, engine_id: str) -> Request | None:
        return self._by_engine.get(engine_id)

    def of_receiver(self, receiver: Receiver, request_id: str) -> Request | None:
        return self._by_receiver.get(receiver, {}).get(request_id)

    def all_of_receiver(self, receiver: Receiver) -> list[Request]:
        return list(self._by_receiver.get(receiver, {}).values())

    def receivers(self) -> list[Receiver]:
        return list(self._by_receiver)
