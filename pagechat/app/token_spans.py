"""Which tokens of a chat's prompt a message is. The daemon has the tokenizer and the template; it is asked.

```
prompt   | system | question | answer | question | answer |
                             ^ end of message 0  ^ end of message 2      in tokens, as the engine counts them
```
"""

from __future__ import annotations

from collections.abc import Sequence

from pagechat.app.client_api import Client
from pagechat.app.conversation import Conversation
from pagechat.protocol import ChatMessage


async def pieces(client: Client, context: Sequence[ChatMessage]) -> list[str]:
    """The text of each token of these messages. A last answer is one that may still go on. Raises ClientError."""
    return await client.pieces(context, continue_final=context[-1].role == "assistant") if context else []


async def end_of(client: Client, conversation: Conversation, index: int) -> int:
    """Tokens up to the end of message `index`; -1 asks for those before the first message. Raises ClientError."""
    return len(await pieces(client, conversation.context(index + 1)))


async def span_of(client: Client, conversation: Conversation, index: int) -> tuple[int, int]:
    """(first token, token behind the last) of message `index`, with the marks the template puts around it."""
    before, upto = conversation.context(index), conversation.context(index + 1)
    first, whole = await pieces(client, before), await pieces(client, upto)
    # Behind a question `pieces` opens the answer: what does not go on so in the longer prompt is no part of it.
    return _common(first, whole), len(whole)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
