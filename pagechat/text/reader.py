"""The text of an answer, taken apart as it comes: what the model thought, what it says, which tools it calls.

```
<think> reasoning </think> content <tool_call> {"name": ..., "arguments": {...}} </tool_call> content
```
Text is held back only while it may still become a mark. A call comes when it is whole; what looks like one and is
none stays text. A call that a grammar forces cannot turn out to be none: its name comes at once, its arguments piece
by piece. What comes out does not depend on where the text was cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from pagechat.text.formats.format import CallSyntax, Read, Think
from pagechat.text.json_value import ValueEnd
from pagechat.text.parts import Content, Part, Reasoning, ToolCall, new_call_id


class Reader(Protocol):
    """Of one answer."""

    @property
    def passes(self) -> bool:
        """All text to come is content, and none is held."""
        ...

    @property
    def reasoning(self) -> bool:
        """The model is thinking, as far as its text was fed."""
        ...

    @property
    def done(self) -> bool:
        """The answer has all the calls that it may have."""
        ...

    def feed(self, text: str) -> list[Part]:
        """What is certain by now."""
        ...

    def finish(self) -> list[Part]:
        """The rest, once nothing more will come."""
        ...


class Calls:
    """The calls of one answer as parts."""

    def __init__(self, *, only_one: bool) -> None:
        self._only_one = only_one
        self.count = 0

    @property
    def done(self) -> bool:
        return self._only_one and self.count > 0

    def whole(self, name: str, arguments: str) -> list[Part]:
        """Nothing when there has been one and there may be no more."""
        return [] if self.done else [self.begun(name, arguments)]

    def begun(self, name: str, arguments: str = "") -> ToolCall:
        self.count += 1
        return ToolCall(self.count - 1, arguments, new_call_id(), name)

    def more(self, arguments: str) -> ToolCall:
        """Of the call that was begun last."""
        return ToolCall(self.count - 1, arguments)


class MarkReader:
    """For formats with marks around reasoning and calls."""

    def __init__(
        self,
        think: Think | None,
        syntax: CallSyntax | None,
        *,
        thinking: bool = False,
        may_think: bool = True,
        forced: bool = False,
        only_one: bool = False,
    ) -> None:
        """`syntax`: of calls, where tools were offered. `thinking`: the prompt has opened the reasoning already.
        `may_think`: the answer may begin with reasoning. `forced`: a grammar makes the answer one call."""
        self._think, self._syntax, self._forced = think, syntax, forced
        self._state: Literal["start", "reasoning", "content", "call", "arguments", "end"] = "content"
        if think is not None and (thinking or may_think):
            self._state = "reasoning" if thinking else "start"
        self._held = ""
        self._looked = 0
        """Characters of a held call in which no end was found."""
        self._fresh = False
        """A mark has just ended: the line breaks after it belong to it."""
        self._calls = Calls(only_one=only_one)
        self._said = False
        """There was content, so a call needs its mark."""
        self._value = ValueEnd()

    @property
    def passes(self) -> bool:
        return self._state == "content" and self._syntax is None and not self._fresh

    @property
    def reasoning(self) -> bool:
        return self._state == "reasoning"

    @property
    def done(self) -> bool:
        return self._calls.done and self._state != "arguments"

    def feed(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._step(parts, final=False):
            pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        while self._step(parts, final=True):
            pass
        held, self._held = self._held, ""
        if not held or (self._calls.count and not held.strip()):
            return parts
        return [*parts, Reasoning(held) if self._state == "reasoning" else Content(held)]

    def _step(self, parts: list[Part], *, final: bool) -> bool:
        """Takes one thing off what is held; False when more text must come first."""
        if self._fresh:
            self._held = self._held.lstrip("\n")
            self._fresh = not self._held
        match self._state:
            case "start":
                return self._start()
            case "reasoning":
                assert self._think is not None
                if self._take_until((self._think.closes,), Reasoning, parts) is None:
                    return False
                self._held = self._held.removeprefix(self._think.closes)
                self._state, self._fresh = "content", True
                return True
            case "content":
                return self._content(parts)
            case "call":
                return self._call(parts, final=final)
            case "arguments":
                end = self._value.feed(self._held)
                piece = self._held if end is None else self._held[:end]
                parts += [self._calls.more(piece)] if piece else []
                self._held, self._state = self._held[len(piece) :], "arguments" if end is None else "end"
                return end is not None
        self._held = ""  # what closes a forced call is nobody's text
        return False

    def _start(self) -> bool:
        assert self._think is not None
        opens, begun = self._think.opens, self._held.lstrip()
        if opens.startswith(begun) and begun != opens:
            return False
        if begun.startswith(opens):
            self._held, self._state, self._fresh = begun.removeprefix(opens), "reasoning", True
        else:
            self._state = "content"
        return True

    def _content(self, parts: list[Part]) -> bool:
        syntax = self._syntax
        if syntax is None:
            parts += [Content(self._held)] if self._held else []
            self._held = ""
            return False
        if syntax.bare and not self._said:
            begun = self._held.lstrip(" \n\t;" if self._calls.count else " \n\t")
            if not begun:
                return False
            if begun.startswith("{"):
                self._held, self._state, self._looked = begun, "call", 0
                return True
        found = self._take_until(syntax.opens, Content, parts)
        if found is None:
            return False
        self._state, self._looked = "call", 0
        return True

    def _call(self, parts: list[Part], *, final: bool) -> bool:
        syntax = self._syntax
        assert syntax is not None
        if self._forced and (head := syntax.head(self._held)):
            parts.append(self._calls.begun(head[0]))
            self._held, self._state = self._held[head[1] :], "arguments"
            return True
        if not final and not self._closed(syntax):
            return False
        read = syntax.read(self._held, final=final, called=self._calls.count > 0)
        self._looked = len(self._held)
        if read is None:
            return False
        self._take(read, parts, syntax)
        return True

    def _closed(self, syntax: CallSyntax) -> bool:
        """Something that may close the call has come since it was looked at."""
        longest = max(map(len, syntax.closers))
        fresh = self._held[max(0, self._looked - longest + 1) :]
        return any(closer in fresh for closer in syntax.closers)

    def _take(self, read: Read, parts: list[Part], syntax: CallSyntax) -> None:
        self._state = "content"
        if read.calls or read.silent:
            for name, arguments in read.calls:
                parts += self._calls.whole(name, arguments)
            self._held = self._held[read.length :]
            return
        mark = next((mark for mark in syntax.opens if self._held.startswith(mark)), self._held[:1])
        parts.append(Content(mark))
        self._held, self._said = self._held[len(mark) :], True

    def _take_until(self, marks: Iterable[str], kind: type[Content] | type[Reasoning], parts: list[Part]) -> int | None:
        """Gives out what comes before the first of the marks, which stays. White space just before it belongs to it."""
        places = [place for mark in marks if (place := self._held.find(mark)) >= 0]
        keep = min(places) if places else len(self._held) - max(_possible_beginning(self._held, mark) for mark in marks)
        before, self._held = self._held[:keep], self._held[keep:]
        if places:
            before = before.rstrip()
        if before and not (self._calls.count and not before.strip()):
            parts.append(kind(before))
            self._said = self._said or kind is Content
        return keep if places else None


def _possible_beginning(text: str, mark: str) -> int:
    """Length of the end of `text` that may be white space and a beginning of the mark."""
    longest = next((length for length in range(len(mark) - 1, 0, -1) if text.endswith(mark[:length])), 0)
    rest = text[: len(text) - longest]
    return longest + len(rest) - len(rest.rstrip())
