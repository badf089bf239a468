"""Who may begin: limits of what waits, and of what one key does at a time.

Counted here and not in the engine, because a refusal must come before anything is computed and name its reason.
A request is let in whole or not at all: n answers, or several prompts, count as so many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pagechat.daemon.http.kept import MOST_OF_ALL
from pagechat.daemon.http.keys import Key
from pagechat.daemon.http.refusal import ApiError


@dataclass(frozen=True, slots=True)
class Limits:
    waiting: int = 1024
    """Answers that were let in and have not begun."""
    waiting_tokens: int = 4 * 2**20
    """Prompt tokens of those."""


class Admission:
    """The HTTP requests in flight. One loop owns it."""

    def __init__(self, limits: Limits, on_refusal: Callable[[str], None] = lambda reason: None) -> None:
        """`on_refusal` is told the reason of each."""
        self.limits = limits
        self.waiting = 0
        self.waiting_tokens = 0
        self.kept = 0
        """Log probabilities that requests keep until they are answered."""
        self._on_refusal = on_refusal
        self._of_key: Counter[str] = Counter()

    def enter(self, key: Key, answers: int) -> Ticket:
        """Raises ApiError 429; 400 for what could never be let in."""
        most = key.max_concurrent
        if most is not None:
            under_way = self._of_key[key.name]
            words = f"key {key.name!r} may have {most} answers under way"
            self._check(
                "key_concurrency",
                answers,
                under_way,
                most,
                f"{words}; {under_way} are, and this request asks for {answers}",
            )
        words = f"{self.waiting:,} answers wait to begin and this request asks for {answers}"
        self._check("queue_requests", answers, self.waiting, self.limits.waiting, words)
        return Ticket(self, key.name, answers)

    def count(self, name: str, answers: int) -> None:
        self._of_key[name] += answers
        if not self._of_key[name]:
            del self._of_key[name]

    def wait(self, answers: int, tokens: int) -> None:
        if tokens > 0:
            words = f"{self.waiting_tokens:,} prompt tokens wait to be read and this request has {tokens:,}"
            self._check("queue_tokens", tokens, self.waiting_tokens, self.limits.waiting_tokens, words)
        self.waiting += answers
        self.waiting_tokens += tokens

    def keep(self, numbers: int) -> None:
        if numbers > 0:
            words = f"requests under way keep {self.kept:,} log probabilities and this one asks for {numbers:,}"
            self._check("logprobs", numbers, self.kept, MOST_OF_ALL, words)
        self.kept += numbers

    def _check(self, reason: str, asked: int, taken: int, limit: int, words: str) -> None:
        if asked + taken <= limit:
            return
        self._on_refusal(reason)
        if asked > limit:
            raise ApiError(400, f"{words}; {limit:,} is the limit, and no time will change that", code=reason)
        raise ApiError(429, f"{words}; {limit:,} is the limit; try again later", code=reason)


class Ticket:
    """One request that was let in."""

    def __init__(self, admission: Admission, name: str, answers: int) -> None:
        self._admission, self.tenant, self._answers = admission, name, answers
        self._waiting = answers
        self._tokens = 0
        self.kept = 0
        """Log probabilities."""
        admission.count(name, answers)
        admission.wait(answers, 0)

    def has_prompt(self, tokens: int) -> None:
        """Its prompts take so many tokens. Raises ApiError 429."""
        self._admission.wait(0, tokens)
        self._tokens += tokens

    def keeps(self, numbers: int) -> None:
        """It keeps so many log probabilities until it is closed. Raises ApiError 429."""
        self._admission.keep(numbers)
        self.kept += numbers

    def began(self) -> None:
        """It waits no longer."""
        self._admission.wait(-self._waiting, -self._tokens)
        self._waiting = self._tokens = 0

    def close(self) -> None:
        """It has ended. A second call does nothing."""
        self.began()
        self._admission.count(self.tenant, -self._answers)
        self._answers = 0
        self._admission.keep(-self.kept)
        self.kept = 0
