"""How the model reads a chat, token by token, for clients that show what is in a block.

A client gets the pieces of messages it sends itself: nobody is told another client's text. Knows no socket.
"""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable, Sequence

from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Conversation, for_template
from pagechat.daemon.heavy import Heavy
from pagechat.daemon.text import ModelText
from pagechat.protocol import GetPieces, Pieces, Rejected


async def answer(
    question: GetPieces, ready: Callable[[], Awaitable[object]], text: Callable[[], ModelText | None], heavy: Heavy
) -> Pieces | Rejected:
    """The text of each token of the prompt, or why there is none. Waits for the engine (`ready`), whose model it is."""
    try:
        await ready()
        model = text()
        assert model is not None
        return await heavy.run("", _cut, question, model)
    except RequestError as error:
        return Rejected(code=error.code, message=error.message, ticket=question.ticket)


def _cut(question: GetPieces, text: ModelText) -> Pieces:
    messages = [for_template(message) for message in question.messages]
    tokens = text.prompt(Conversation(messages=messages, continue_final=question.continue_final))
    return Pieces(ticket=question.ticket, pieces=texts([text.token_bytes(token) for token in tokens]))


def texts(tokens: Sequence[bytes]) -> list[str]:
    """The text of each of these tokens, which follow each other. A character of several tokens is the last one's, and
    those before it have none."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = [decoder.decode(token) for token in tokens]
    if found:
        found[-1] += decoder.decode(b"", final=True)
    return found
