"""Several answers to one question, of which a person picks one. The others are kept with it and can be seen again.

```
while choosing   messages[-1] is the first answer, its `choices` the others
picked           messages[-1] is the picked one; facts["alternatives"] has the others: [{"content", "status", "facts"}]
```
"""

from __future__ import annotations

from typing import Any

import msgspec

from pagechat.app.message import Message
from pagechat.store import MessageStatus

MOST = 4
"""Answers at once: as many as can be read side by side."""
_KEPT = "alternatives"


class _Kept(msgspec.Struct):
    content: str
    status: MessageStatus = "complete"
    facts: dict[str, Any] = {}


def note_others(answer: Message) -> None:
    """Keep what came with the answer among its facts, so that it is saved with it."""
    if answer.choices:
        answer.note(**{_KEPT: [_plain(one) for one in answer.choices]})


def picked(answer: Message, number: int) -> Message:
    """The message that takes the place of several: candidate `number` (0 the first), the others kept with it."""
    chosen = answer.candidates[number].copied()
    chosen.facts[_KEPT] = [_plain(one) for one in answer.candidates if one is not answer.candidates[number]]
    return chosen


def reopened(answer: Message) -> Message | None:
    """The answer and those that are kept with it, to pick from once more; None when there are none."""
    try:
        kept = msgspec.convert(answer.facts.get(_KEPT, []), list[_Kept])
    except msgspec.ValidationError:  # a newer version's, say
        return None
    again = answer.copied()
    again.choices = [Message("assistant", one.content, one.status, dict(one.facts)) for one in kept]
    return again if again.choices else None


def _plain(message: Message) -> dict[str, Any]:
    facts = {name: value for name, value in message.facts.items() if name != _KEPT}
    status = "stopped" if message.status == "streaming" else message.status
    return {"content": message.content, "status": status, "facts": facts}
