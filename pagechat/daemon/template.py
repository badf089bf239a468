"""A model's chat template: messages to the one string the model was trained on.

The template is a program that came with the weights, so it is somebody else's code: it runs in Jinja's immutable
sandbox, and only in `ChatTemplate.render`. Limits, since a sandbox alone does not stop a loop:
`TIME_LIMIT_S` on the wall clock, checked at each line the template executes; the text at most `GROWTH` times the
messages plus a megabyte; and no repetition (`*`, `**`) of more than a million items, which one C call would make
before any clock is read. What a template joins within these seconds is not limited further.
Rendering blocks, so the front does it in a worker thread. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

from pagechat.daemon.errors import RequestError

TIME_LIMIT_S = 5.0
GROWTH = 4
_SPARE_CHARACTERS = 2**20
_MOST_REPEATED = 10**6

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""For models without a chat template (base models): one line a message, and the word that invites the answer."""


class _OutOfTime(BaseException):
    """Raised in the template's own frames; a BaseException, so that nothing it calls can swallow it."""


class ChatTemplate:
    """A compiled template and the variables it may use beside the messages."""

    def __init__(self, source: str, variables: Mapping[str, Any], time_limit_s: float = TIME_LIMIT_S) -> None:
        """Raises RequestError when the source is not a template."""
        environment = _Environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise RequestError("bad_request", f"the model's chat template does not compile: {error}") from None
        self._variables = dict(variables)
        self._time_limit_s = time_limit_s
        constants = [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
        self.literals: list[str] = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)] + constants
        """Every piece of text that the template itself contains."""
        self.takes_tools = "tools" in jinja2.meta.find_undeclared_variables(tree)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, up to where the answer begins. Raises RequestError with the template's own message.

        `variables` are more names for the template, none of those that are set here.
        """
        limit = GROWTH * sum(map(len, texts_in([messages, tools, variables]))) + _SPARE_CHARACTERS
        given: dict[str, Any] = {"messages": [dict(message) for message in messages], "tools": tools}
        given |= {"add_generation_prompt": add_generation_prompt, **self._variables}
        if taken := sorted(given.keys() & (variables or {}).keys()):
            raise RequestError(
                "bad_request",
                f"chat_template_kwargs may not have {' and '.join(taken)}: the daemon sets that itself",
                "chat_template_kwargs",
            )
        given |= {"documents": None, **(variables or {})}
        pieces: list[str] = []
        size = 0
        try:
            with _deadline(self._time_limit_s):
                for piece in self._template.generate(given):
                    pieces.append(piece)
                    size += len(piece)
                    if size > limit:
                        raise RequestError("bad_request", f"the chat template writes more than {limit:,} characters")
        except _OutOfTime:
            raise RequestError(
                "bad_request", f"the chat template was stopped after {self._time_limit_s:g} s: it does not end"
            ) from None
        except RequestError:
            raise
        except jinja2.TemplateError as error:
            raise RequestError("bad_request", f"the chat template refuses these messages: {error}") from None
        except (MemoryError, RecursionError) as error:
            raise RequestError("bad_request", f"the chat template fails: {type(error).__name__}") from None
        except Exception as error:  # it is a program: any error is its own
            raise RequestError("bad_request", f"the chat template fails: {type(error).__name__}: {error}") from None
        return "".join(pieces)


def texts_in(value: Any) -> Iterator[str]:
    """Every string in a value made of lists and mappings, their keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Within it, this thread's template code raises _OutOfTime once the time is over."""
    end = time.monotonic() + seconds

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise _OutOfTime
        return trace if frame.f_code.co_filename == "<template>" else None

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks answers for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body)


class _PlainNamespace(Namespace):
    """Jinja's namespace without underscore names, as transformers has it."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a chat template may not store {name!r} on a namespace")
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """What transformers' `_compile_jinja_template` gives to templates, no more."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _PlainNamespace

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):
            if operator == "*" and isinstance(one, int) and hasattr(other, "__len__"):
                if one * len(other) > _MOST_REPEATED:
                    raise SecurityError(f"a chat template may repeat at most {_MOST_REPEATED:,} items")
            elif isinstance(one, int) and one.bit_length() > 64:
                raise SecurityError("a chat template may not multiply such large numbers")
        if operator == "**" and isinstance(right, int) and right > 64:
            raise SecurityError("a chat template may not raise to such a power")
        return super().call_binop(context, operator, left, right)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes for HTML, which a prompt is not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
