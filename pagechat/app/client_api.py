"""What the app needs of `pagechat.client.AsyncEngineClient`, so that a test or a recording can stand in for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from engine.protocol import BlockContent, SessionAction, SessionInfo, SessionReply, Snapshot, StepReport
from pagechat.protocol import Accepted, ChatMessage, ChatOptions, Delta, Finished, Status


class Reports(Protocol):
    """A telemetry subscription."""

    def __aiter__(self) -> AsyncIterator[StepReport]: ...

    def close(self) -> None: ...


class Client(Protocol):
    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        session: str | None = None,
        options: ChatOptions | None = None,
        request_id: str | None = None,
        keep: bool = False,
        n: int = 1,
        continue_final: bool = False,
        priority: int = 0,
    ) -> AsyncIterator[Accepted | Delta | Finished]: ...

    async def cancel(self, request_id: str) -> None: ...

    async def set_priority(self, request_id: str, priority: int) -> None: ...

    async def status(self) -> Status: ...

    async def snapshot(self) -> Snapshot: ...

    async def sessions(self) -> list[SessionInfo]: ...

    async def manage_session(
        self, action: SessionAction, session: str, target: str = "", tokens: int | None = None
    ) -> SessionReply: ...

    async def pieces(self, messages: Sequence[ChatMessage], continue_final: bool = False) -> list[str]: ...

    async def block(self, block: int) -> BlockContent: ...

    def telemetry(self) -> Reports: ...

    async def stop_daemon(self) -> None: ...

    async def close(self) -> None: ...
