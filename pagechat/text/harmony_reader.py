"""Answers of gpt-oss taken apart: a row of messages, each in a channel (formats/harmony.py)."""

from __future__ import annotations

from pagechat.text.formats.format import as_call
from pagechat.text.formats.harmony import BODY_ENDS, CHANNEL, MARKS, MESSAGE, START, is_reasoning, recipient
from pagechat.text.json_value import value_at
from pagechat.text.parts import Content, Part, Reasoning
from pagechat.text.reader import Calls


class HarmonyReader:
    """Text outside of any message is content: not every answer keeps to the format."""

    passes = False

    def __init__(self, *, calls: bool = False, forced: bool = False, only_one: bool = False) -> None:
        """`calls`: tools were offered. `forced`: a grammar makes the last message a call."""
        self._may_call, self._forced = calls, forced
        self._calls = Calls(only_one=only_one)
        self._held = ""
        self._header: str | None = None
        """Of the message that is open."""
        self._streams = False
        """The open message is a call that has been begun."""

    @property
    def reasoning(self) -> bool:
        return self._header is not None and is_reasoning(self._header)

    @property
    def done(self) -> bool:
        return self._calls.done and not self._streams

    def feed(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        parts = self.feed("")
        held, self._held = self._held, ""
        if self._header is None:
            return parts + ([Content(held)] if held else [])
        return parts + self._body(held, whole=True)

    def _step(self, parts: list[Part]) -> bool:
        """Takes one thing off what is held; False when more text must come first."""
        if self._header is None:
            return self._open(parts)
        ends = [(place, mark) for mark in BODY_ENDS if (place := self._held.find(mark)) >= 0]
        if not ends:
            to = self._target(self._header)
            if to is None or self._streams:
                keep = len(self._held) - _beginning_of_a_mark(self._held)
                parts += self._body(self._held[:keep], whole=False)
                self._held = self._held[keep:]
            return False
        place, mark = min(ends)
        parts += self._body(self._held[:place], whole=True)
        self._held = self._held[place if mark in (START, CHANNEL) else place + len(mark) :]
        self._header, self._streams = None, False
        return True

    def _open(self, parts: list[Part]) -> bool:
        """Reads the header of a message."""
        begun = self._held.lstrip()
        if begun.startswith((START, CHANNEL)):
            header, found, rest = begun.partition(MESSAGE)
            if not found:
                return False
            self._header, self._held = header, rest
            to = self._target(header)
            if to is not None and self._forced:
                parts.append(self._calls.begun(to))
                self._streams = True
            return True
        places = [place for mark in (START, CHANNEL) if (place := self._held.find(mark)) >= 0]
        keep = min(places) if places else len(self._held) - _beginning_of_a_mark(self._held)
        if text := self._held[:keep]:
            parts += [Content(text)] if text.strip() else []
        self._held = self._held[keep:]
        return bool(places)

    def _target(self, header: str) -> str | None:
        return recipient(header) if self._may_call else None

    def _body(self, text: str, *, whole: bool) -> list[Part]:
        """A piece of the open message, or all of a call's."""
        assert self._header is not None
        to = self._target(self._header)
        if to is not None and not self._streams:
            return self._call(to, text) if whole else []
        if not text:
            return []
        if self._streams:
            return [self._calls.more(text)]
        return [Reasoning(text) if is_reasoning(self._header) else Content(text)]

    def _call(self, name: str, text: str) -> list[Part]:
        try:
            found = value_at(text, 0)
            call = as_call(name, found[0]) if found and not text[found[1] :].strip() else None
        except ValueError:
            call = None
        if call is not None:
            return self._calls.whole(*call)
        assert self._header is not None
        return [Content(f"{self._header}{MESSAGE}{text}")]


def _beginning_of_a_mark(text: str) -> int:
    """Length of the end of `text` that may become a mark."""
    return max(next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0) for mark in MARKS)
