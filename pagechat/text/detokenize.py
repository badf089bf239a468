"""Generated tokens to the text of an answer, as they come.

Two things hold text back: a character whose bytes are not all there, and the beginning of what may become a stop
string. Nothing else does. The deltas add up to the decoding of all tokens, cut before the first stop string.
Knows no request and no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    Control tokens have no text, but for those that the reader of the answer has to see: their names.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Mapping[int, str] | None = None) -> None:
        """`shown`: control tokens that are written by their names."""
        self._decode = tokenizer.decode
        self._shown = shown or {}
        self._context: list[int] = []
        self._pending: list[int] = []

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        text = ""
        for token in tokens:
            if token in self._shown:
                text += self.flush() + self._shown[token]
                continue
            self._pending.append(token)
            new = self._pending_text()
            stuck = len(self._pending) > _MOST_PENDING
            if new and (stuck or not new.endswith(_REPLACEMENT)):
                text += new
                self._commit()
        return text

    def flush(self) -> str:
        """What is left at the end: an incomplete character becomes U+FFFD."""
        if not self._pending:
            return ""
        new = self._pending_text()
        self._commit()
        return new

    def _pending_text(self) -> str:
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]

    def _commit(self) -> None:
        self._context, self._pending = self._pending, []


class StopFilter:
    """Passes text on until one of the stop strings has been seen, and nothing of that string or after it.

    Text may be hidden: it is looked at, since a stop string may name a control token, but never passed on.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self._hidden: list[tuple[int, int]] = []
        """Where the held text is hidden."""
        self.hit = False

    def feed(self, text: str, *, hidden: bool = False) -> str:
        """The text that certainly is no part of a stop string."""
        if self.hit or not self._stops:
            return "" if self.hit or hidden else text
        if hidden:
            self._hidden.append((len(self._held), len(self._held) + len(text)))
        self._held += text
        if (cut := self._find(self._held)) is not None:
            self.hit = True
            passed, self._held = self._take(cut), ""
            return passed
        return self._take(len(self._held) - self._possible_beginning(self._held))

    def flush(self) -> str:
        """The text held back, once nothing more will come."""
        return self._take(len(self._held))

    def _take(self, length: int) -> str:
        """Takes so much off what is held, and returns what is not hidden of it."""
        if not self._hidden:
            text, self._held = self._held[:length], self._held[length:]
            return text
        text, place = "", 0
        for start, end in self._hidden:
            text += self._held[place : min(start, length)]
            place = max(place, min(end, length))
        text += self._held[place:length]
        self._hidden = [(max(0, start - length), end - length) for start, end in self._hidden if end > length]
        self._held = self._held[length:]
        return text

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
