"""By which hash the prefix cache finds a block. The engine knows it; it is asked about the block under the cursor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pagechat.app.client_api import Client
from pagechat.client import ClientError

AGAIN_S = 0.2
"""As often, at most, while the cursor runs over the map."""


class BlockNames:
    """Answers at once with what is known of one block, and asks for what is not."""

    def __init__(self, client: Callable[[], Client | None], arrived: Callable[[], None]) -> None:
        """`arrived` is called when there is more to tell."""
        self._client, self._arrived = client, arrived
        self._known: tuple[object, str | None] = (None, None)
        self._asked_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    def get(self, block: int, content: float) -> str | None:
        """`content`: tells one content of the block from the next, as `PoolView.written` does."""
        key = (block, content)
        if self._known[0] != key and self._asking is None and time.monotonic() - self._asked_at > AGAIN_S:
            self._asking = asyncio.create_task(self._ask(block, key))
            self._asking.add_done_callback(self._asked)
        return self._known[1] if self._known[0] == key else None

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None

    async def _ask(self, block: int, key: object) -> None:
        client = self._client()
        self._asked_at = time.monotonic()
        if client is not None:
            try:
                self._known = (key, (await client.block(block)).name)
            except ClientError:
                return
            self._arrived()
