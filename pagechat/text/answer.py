"""The answer so far: its tokens as text, without what stop strings cut off, taken apart by a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from tokenizers import Tokenizer

from pagechat.protocol import CallPiece
from pagechat.text.detokenize import Detokenizer, StopFilter
from pagechat.text.parts import Content, Reasoning, ToolCall
from pagechat.text.reader import Reader


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of an answer, or all of it. False where it is nothing."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.text + other.text, self.reasoning + other.reasoning, self.calls + other.calls)


NOTHING = Piece()


class AnswerText:
    """The text of one answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        *,
        control: Mapping[int, str] | None = None,
        shown: Mapping[int, str] | None = None,
        reader: Reader | None = None,
    ) -> None:
        """`control`: names of control tokens; `shown`: of those that the reader has to see. Without a `reader` all
        text is the answer's."""
        self._filter = StopFilter(stops)
        named = {
            id_: name for id_, name in (control or {}).items() if any(name in stop or stop in name for stop in stops)
        }
        self._shown, self._hidden = shown or {}, named.keys() - (shown or {}).keys()
        self._names = {**named, **self._shown}
        self._detokenizer = Detokenizer(tokenizer, self._names)
        self._reader = reader
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[CallPiece] = []

    @property
    def stopped(self) -> bool:
        """Nothing more will be added: a stop string has been found, or there are calls enough."""
        return self._filter.hit or (self._reader is not None and self._reader.done)

    @property
    def reasoning(self) -> bool:
        """The model is thinking."""
        return self._reader is not None and self._reader.reasoning

    @property
    def text(self) -> str:
        """Of the answer itself."""
        return "".join(self._texts)

    @property
    def whole(self) -> Piece:
        """All of it; each call in one piece."""
        calls: dict[int, CallPiece] = {}
        arguments: dict[int, list[str]] = {}
        for call in self._calls:
            calls.setdefault(call.index, call)
            arguments.setdefault(call.index, []).append(call.arguments)
        joined = tuple(replace(call, arguments="".join(arguments[index])) for index, call in calls.items())
        return Piece(self.text, "".join(self._thoughts), joined)

    def feed(self, tokens: Sequence[int]) -> Piece:
        """What is new; may be nothing."""
        if not self._hidden:
            return self._read(self._filter.feed(self._detokenizer.feed(tokens)))
        passed = ""
        for token in tokens:
            text = self._detokenizer.feed((token,))
            if token in self._hidden:
                before = text.removesuffix(self._names[token])
                passed += self._filter.feed(before) + self._filter.feed(self._names[token], hidden=True)
            else:
                passed += self._filter.feed(text)
        return self._read(passed)

    def finish(self) -> Piece:
        """The last of it: everything that was held back."""
        passed = self._filter.feed(self._detokenizer.flush()) + self._filter.flush()
        return self._read(passed, last=True)

    def _read(self, text: str, *, last: bool = False) -> Piece:
        reader = self._reader
        if reader is None or reader.passes:
            if not text:
                return NOTHING
            self._texts.append(text)
            return Piece(text)
        parts = reader.feed(text)
        if last:
            parts += reader.finish()
        if not parts:
            return NOTHING
        said = "".join([part.text for part in parts if isinstance(part, Content)])
        thought = "".join([part.text for part in parts if isinstance(part, Reasoning)])
        calls = [
            CallPiece(index=part.index, arguments=part.arguments, id=part.id, name=part.name)
            for part in parts
            if isinstance(part, ToolCall)
        ]
        self._texts.append(said)
        self._thoughts.append(thought)
        self._calls += calls
        return Piece(said, thought, tuple(calls))
