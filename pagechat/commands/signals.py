"""How a command that runs until it is interrupted ends."""

from __future__ import annotations

import asyncio
import signal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def cancel_on_signal() -> None:
    """Ctrl-C and SIGTERM cancel the task that calls this, once: a second one does not cut its end short (`timeout`
    sends two)."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    assert task is not None

    def cancel() -> None:
        # Ignored from here on, also when the loop has ended: it would give them back their power to kill.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, cancel)
