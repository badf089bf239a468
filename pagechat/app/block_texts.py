"""The text in the blocks of our own chats. The daemon has the tokenizer; it is asked once for each state of a chat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from pagechat.app.client_api import Client
from pagechat.app.conversation import Conversation
from pagechat.client import ClientError

AGAIN_S = 2.0
"""A chat that is being written is not asked about more often than this."""

CUT = "‹…›"
"""In the text of a block, for the part of a character whose other part is in the next block, or the one before."""


def text_of(pieces: Sequence[str], first: int, end: int) -> str:
    """The text in the tokens `first..end-1`. A token without text has a part of a character that a later one ends."""
    before = CUT if 0 < first < len(pieces) and not pieces[first - 1] else ""
    after = CUT if end < len(pieces) and pieces[first:end] and not pieces[end - 1] else ""
    return before + "".join(pieces[first:end]) + after


class BlockTexts:
    """Answers at once with what is known, and asks for what is not."""

    def __init__(
        self,
        client: Callable[[], Client | None],
        find: Callable[[str], Conversation | None],
        block_size: Callable[[], int | None],
        arrived: Callable[[], None],
    ) -> None:
        """`arrived` is called when there is more to tell."""
        self._client, self._find, self._block_size, self._arrived = client, find, block_size, arrived
        self._pieces: dict[str, tuple[int, float, list[str]]] = {}
        """(version of the chat, when asked, text of each token)."""
        self._asking: set[asyncio.Task[None]] = set()

    def get(self, session: str, index: int) -> str | None:
        """The text of the session's logical block `index`; None while it is not known, or not ours to know."""
        conversation, block_size = self._find(session), self._block_size()
        if conversation is None or not block_size:
            return None
        version, asked, pieces = self._pieces.get(session, (-1, 0.0, []))
        if version != conversation.version and time.monotonic() - asked > AGAIN_S and not self._asking:
            task = asyncio.create_task(self._ask(conversation))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return text_of(pieces, index * block_size, (index + 1) * block_size) or None

    async def _ask(self, conversation: Conversation) -> None:
        client, version, context = self._client(), conversation.version, conversation.context()
        if client is None or not context:
            return
        try:
            pieces = await client.pieces(context, continue_final=context[-1].role == "assistant")
        except ClientError:
            pieces = []
        self._pieces[conversation.id] = (version, time.monotonic(), pieces)
        self._arrived()
