"""How a command that runs until it is interrupted ends."""

from __future__ import annotations

import asyncio
import signal


def cancel_on_signal() -> None:
    """Ctrl-C and SIGTERM cancel the task that calls this, once: a second one does not cut its end short (`timeout`
    sends two)."""
    task = asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
