"""How much a key may ask for in a minute: requests and tokens, as two buckets that fill up evenly.

Tokens of a prompt are taken when it is let in; those of the answer when they have been made, on credit: a bucket that
is empty then lets nothing in until it has filled up again. So nobody has to guess how long an answer will be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pagechat.daemon.http.keys import Key
from pagechat.daemon.http.refusal import ApiError

_MINUTE_S = 60.0


class Bucket:
    """Holds what one minute allows, at most."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level, self._at = float(per_minute), now

    def level(self, now: float) -> float:
        """What is left; below zero it is owed."""
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / _MINUTE_S)
        self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def seconds_until(self, amount: float, now: float) -> float:
        """Until it holds so much."""
        return max(0.0, (amount - self.level(now)) * _MINUTE_S / self.per_minute)


class Rates:
    """Of all keys. One loop owns it."""

    def __init__(
        self, on_refusal: Callable[[str], None] = lambda reason: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_refusal, self._clock = on_refusal, clock
        self._buckets: dict[tuple[str, str], Bucket] = {}
        """By key's name, and "requests" or "tokens"."""

    def request(self, key: Key) -> None:
        """One more. Raises ApiError 429."""
        self._take(key, "requests", 1)

    def prompt(self, key: Key, tokens: int) -> None:
        """A prompt is to be let in. Raises ApiError 429; 400 for one that no minute allows."""
        self._take(key, "tokens", tokens)

    def answered(self, key: Key, tokens: int) -> None:
        """So many tokens have been made for it."""
        bucket = self._bucket(key, "tokens")
        if bucket is not None:
            bucket.take(tokens, self._clock())

    def headers(self, key: Key) -> list[tuple[bytes, bytes]]:
        """As OpenAI's: what a minute allows, what is left of it, and when all of it will be."""
        found: list[tuple[bytes, bytes]] = []
        now = self._clock()
        for what in ("requests", "tokens"):
            bucket = self._bucket(key, what)
            if bucket is not None:
                left = max(0, math.floor(bucket.level(now)))
                reset = bucket.seconds_until(bucket.per_minute, now)
                for name, value in (("limit", bucket.per_minute), ("remaining", left), ("reset", f"{reset:.3f}s")):
                    found.append((f"x-ratelimit-{name}-{what}".encode(), str(value).encode()))
        return found

    def _take(self, key: Key, what: str, amount: int) -> None:
        bucket, now = self._bucket(key, what), self._clock()
        if bucket is None:
            return
        words = f"key {key.name!r} may have {bucket.per_minute:,} {what} a minute"
        if amount > bucket.per_minute:
            self._on_refusal(f"key_{what}")
            raise ApiError(400, f"{words}, and this request has {amount:,}", code=f"key_{what}")
        wait = bucket.seconds_until(amount, now)
        if wait > 0:
            self._on_refusal(f"key_{what}")
            raise ApiError(
                429, f"{words}; try again in {wait:.1f} s", code="rate_limit_exceeded", retry_s=math.ceil(wait)
            )
        bucket.take(amount, now)

    def _bucket(self, key: Key, what: str) -> Bucket | None:
        """None: there is no limit."""
        limit = key.requests_per_minute if what == "requests" else key.tokens_per_minute
        place = (key.name, what)
        if limit is None:
            self._buckets.pop(place, None)
            return None
        bucket = self._buckets.get(place)
        if bucket is None or bucket.per_minute != limit:  # the key file says something else now
            bucket = self._buckets[place] = Bucket(limit, self._clock())
        return bucket
