"""What a format is: the marks around reasoning, and the way in which tools are called.

A format is chosen from the model's chat template, and it owns everything that depends on such marks: how an answer is
taken apart, what an answer must be that has to call a tool, and where the grammar of an answer begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Written = Callable[[str], str]
"""A mark as Lark has it: a control token by its id, or text."""

NAME = r"[A-Za-z0-9_.-]{1,64}"
_NAME = re.compile(NAME)

_AS_PYTHON_WRITES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance: white space as in the calls that models were trained on, and no more of it."""


@dataclass(frozen=True, slots=True)
class Think:
    """Marks around reasoning."""

    opens: str
    closes: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called."""

    name: str
    schema: dict[str, Any]
    """Of its arguments."""


@dataclass(frozen=True, slots=True)
class Read:
    """What stood at the beginning of a text."""

    calls: tuple[tuple[str, str], ...]
    """Name and arguments of each, the arguments as JSON."""
    length: int
    """Characters that these take."""
    silent: bool = False
    """No call, but a mark that goes with calls and is nobody's text."""


BROKEN = Read((), 0)
"""It looked like a call and is none: it is content."""


class CallSyntax(Protocol):
    """How a family of models writes calls."""

    @property
    def opens(self) -> tuple[str, ...]:
        """A call begins with one of these."""
        ...

    @property
    def bare(self) -> bool:
        """A call may also be the whole answer, without a mark: it then begins with a brace or a bracket."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Everything that may be a control token and has to be seen."""
        ...

    @property
    def closers(self) -> tuple[str, ...]:
        """A call can only be complete where one of these has come."""
        ...

    def read(self, text: str, *, final: bool, called: bool) -> Read | None:
        """What `text` begins with, which is one of `opens`. None: more has to come, never where it is `final`.
        `called`: the answer has called a tool before."""
        ...

    def head(self, text: str) -> tuple[str, int] | None:
        """(name, where the arguments begin as JSON) of a call that is sure to become one, as soon as both are known."""
        ...

    def required(self, tools: Sequence[Tool], written: Written) -> str:
        """Lark: one call of one of these tools. Its first rule is `call`."""
        ...


@dataclass(frozen=True, slots=True)
class Format:
    """How one model writes."""

    name: str
    think: Think | None
    calls: CallSyntax | None
    """None: tools cannot be offered."""

    @property
    def marks(self) -> tuple[str, ...]:
        think = (self.think.opens, self.think.closes) if self.think else ()
        return think + (self.calls.marks if self.calls else ())


def literal(text: str) -> str:
    """As a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def schema_rule(name: str, schema: dict[str, Any]) -> str:
    """A rule of Lark for JSON of that schema, which is the root that its own references lead to."""
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': _AS_PYTHON_WRITES}, ensure_ascii=False)}\n"


def one_of(tools: Sequence[Tool], call: Callable[[Tool, str], str]) -> str:
    """Rules of Lark: one call, which `call` writes for a tool and the name of the rule of its arguments."""
    rules = [f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}\n"]
    for number, tool in enumerate(tools):
        arguments = f"arguments{number}"
        rules.append(f"call{number}: {call(tool, arguments)}\n")
        rules.append(schema_rule(arguments, tool.schema))
    return "".join(rules)


def as_call(name: Any, arguments: Any) -> tuple[str, str] | None:
    """A call as (name, arguments as JSON); None for what is none. Some models write the arguments into a string."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return None
    if arguments is None:
        arguments = {}
    return (name, as_json(arguments)) if isinstance(arguments, dict) else None


def as_json(value: Any) -> str:
    """Readable, but for half a surrogate pair, which is no text and stays escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_text(text) else json.dumps(value)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
