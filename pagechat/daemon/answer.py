"""Generated tokens to the text of an answer, as they come.

Two things hold text back: a character whose bytes are not all there, and the beginning of what may become a stop
string. Nothing else does. The deltas add up to the decoding of all tokens, cut before the first stop string.
Knows no request and no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"

_MOST_PENDING = 64
"""Tokens without a complete character after which the text is taken as it is: no character is that long."""


class Detokenizer:
    """Incremental decoding with two offsets (SGLang's detokenizer, vLLM's detokenizer_utils).

    ```
    tokens   ... | decoded before, kept as context | pending |
    ```
    A tokenizer's decoder may treat the first token of a text specially, so pending tokens are decoded after
    their context and the context's own text is taken off. A byte-fallback decoder spoils the valid bytes
    before an invalid one; text already given out is not taken back then.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        text = ""
        for token in tokens:
            self._pending.append(token)
            new = self._pending_text()
            stuck = len(self._pending) > _MOST_PENDING
            if new and (stuck or not new.endswith(_REPLACEMENT)):
                text += new
                self._commit()
        return text

    def flush(self) -> str:
        """What is left at the end: an incomplete character becomes U+FFFD."""
        new = self._pending_text()
        self._commit()
        return new

    def _pending_text(self) -> str:
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]

    def _commit(self) -> None:
        self._context, self._pending = self._pending, []


class StopFilter:
    """Passes text on until one of the stop strings has been seen, and nothing of that string or after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """The text that certainly is no part of a stop string."""
        if self.hit or not self._stops:
            return "" if self.hit else text
        text = self._held + text
        if (cut := self._find(text)) is not None:
            self.hit, self._held = True, ""
            return text[:cut]
        keep = len(text) - self._possible_beginning(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """The text held back, once nothing more will come."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        """Start of the stop string that is complete first; so the result does not depend on how text was cut."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


class AnswerText:
    """The text of one answer."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._filter = StopFilter(stops)
        self._pieces: list[str] = []

    @property
    def stopped(self) -> bool:
        """A stop string has been found: nothing more will be added."""
        return self._filter.hit

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, tokens: Iterable[int]) -> str:
        """The next delta; may be empty."""
        return self._keep(self._filter.feed(self._detokenizer.feed(tokens)))

    def finish(self) -> str:
        """The last delta: everything that was held back."""
        return self._keep(self._filter.feed(self._detokenizer.flush()) + self._filter.flush())

    def _keep(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text
