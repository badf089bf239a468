"""How the answers to one prompt are read, and what a grammar says around them: as the model's format has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagechat.text.formats import harmony
from pagechat.text.formats.choose import HARMONY
from pagechat.text.formats.format import Format, Tool, literal
from pagechat.text.formats.llama import Llama
from pagechat.text.formats.qwen_xml import QwenXml
from pagechat.text.harmony_reader import HarmonyReader
from pagechat.text.reader import MarkReader, Reader

Control = Callable[[str], int | None]
"""The id of a mark that is a control token; None for one that is text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one request."""

    thinking: bool = False
    """The prompt ends inside the reasoning."""
    tools: tuple[Tool, ...] = ()
    """Those that were offered."""
    forced: bool = False
    """A grammar makes the answer one call."""
    only_one: bool = False
    """One call at most."""
    follows: bool = False
    """A grammar says what the answer is, from its beginning or behind the reasoning that the prompt has opened."""


def takes_calls(format_: Format) -> bool:
    return format_.calls is not None or format_.name == HARMONY


def marks(format_: Format) -> tuple[str, ...]:
    """What has to be seen of an answer although it may be control tokens."""
    return harmony.MARKS if format_.name == HARMONY else format_.marks


def reader(format_: Format, reading: Reading) -> Reader:
    """For one answer."""
    if format_.name == HARMONY:
        return HarmonyReader(calls=bool(reading.tools), forced=reading.forced, only_one=reading.only_one)
    syntax = format_.calls if reading.tools else None
    if isinstance(syntax, Llama | QwenXml):
        syntax = syntax.of(reading.tools)
    return MarkReader(
        format_.think,
        syntax,
        thinking=reading.thinking,
        may_think=not reading.follows,
        forced=reading.forced,
        only_one=reading.only_one,
    )


def required_call(format_: Format, tools: Sequence[Tool], control: Control) -> str:
    """Lark: an answer that calls one of these tools."""
    written = _written(control)
    if format_.name == HARMONY:
        before, thought = _harmony_before(control)
        return f"start: {before} call\n{thought}{harmony.required(tools, written)}"
    assert format_.calls is not None
    return f"start: call\n{format_.calls.required(tools, written)}"


def around(format_: Format, reading: Reading, control: Control) -> str:
    """Lark around `@answer`, for a grammar that does not begin with the answer; empty where it does."""
    if format_.name == HARMONY:
        if reading.forced:
            return ""
        before, thought = _harmony_before(control)
        written = _written(control)
        final = f"{written(harmony.CHANNEL)} {literal('final')} {written(harmony.MESSAGE)}"
        return f"start: {before} {final} @answer\n{thought}"
    if format_.think is None or not reading.thinking:
        return ""
    thought, rule = _until(format_.think.closes, control)
    return f"start: {thought} gap @answer\n{rule}gap: /\\n{{0,2}}/\n"


def _harmony_before(control: Control) -> tuple[str, str]:
    written = _written(control)
    thought, rule = _until(harmony.END, control)
    opened = f"{written(harmony.CHANNEL)} {literal('analysis')} {written(harmony.MESSAGE)}"
    return f"({opened} {thought} {written(harmony.START)} {literal('assistant')})?", rule


def _until(mark: str, control: Control) -> tuple[str, str]:
    """(any text and then the mark, the rule that this needs), in Lark."""
    token = control(mark)
    if token is not None:
        return f"thought <[{token}]>", "thought: /(?s:.*)/\n"
    return "thought", f"thought[suffix={literal(mark)}]: /(?s:.*)/\n"


def _written(control: Control) -> Callable[[str], str]:
    def written(mark: str) -> str:
        token = control(mark)
        return literal(mark) if token is None else f"<[{token}]>"

    return written
