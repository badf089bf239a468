"""Who watches requests go by, to count them. Watching changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.protocol import FinishReason, StepReport

if TYPE_CHECKING:
    from pagechat.daemon.requests import Answer, Request


class Observer:
    """Is told in the loop's thread, so it must be quick. This one does nothing."""

    def tokens(self, request: Request, answer: Answer, since_last_s: float | None) -> None:
        """New tokens of an answer, so many seconds after its last ones; None: its first."""

    def ended(self, request: Request, answer: Answer, reason: FinishReason) -> None:
        """The client is being told that an answer has ended. "error": the whole request failed."""

    def step(self, report: StepReport) -> None:
        """The engine did a step."""
