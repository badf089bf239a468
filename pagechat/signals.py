"""How what runs until it is interrupted ends: by the first SIGINT or SIGTERM, undisturbed by more of them."""

from __future__ import annotations

import asyncio
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """From here on, also when the loop has ended: by itself it would give them back their power to kill."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def cancel_on_signal() -> None:
    """Ctrl-C and SIGTERM cancel the task that calls this, once: a second one does not cut its end short (`timeout`
    sends two)."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert task is not None

    def cancel() -> None:
        ignore_signals(loop)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel)
