"""gpt-oss: an answer is a row of messages, each in a channel (harmony).

```
<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>text<|return|>
<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>
```
analysis is reasoning, a message to a function is a call, everything else is content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagechat.text.formats.format import NAME, Tool, Written, literal, one_of

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
BODY_ENDS = (END, CALL, RETURN, START, CHANNEL)
MARKS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
_TO = re.compile(rf"to=functions\.({NAME})")


def recipient(header: str) -> str | None:
    """The function that a message is for."""
    found = _TO.search(header)
    return found[1] if found else None


def is_reasoning(header: str) -> bool:
    return header.partition(CHANNEL)[2].lstrip().startswith("analysis") or header.lstrip().startswith("analysis")


def required(tools: Sequence[Tool], written: Written) -> str:
    """Lark: a call of one of these tools. Its first rule is `call`."""

    def call(tool: Tool, arguments: str) -> str:
        to = literal(f"commentary to=functions.{tool.name} ")
        return f"{written(CHANNEL)} {to} {written(CONSTRAIN)} {literal('json')} {written(MESSAGE)} {arguments}"

    return one_of(tools, call)
