"""A ZeroMQ socket inside an asyncio loop: a callback for each message, sends that never wait.

Plain sockets and the loop's own reader instead of `zmq.asyncio`: one wake-up drains many messages, nothing is
reordered, and a send tells at once whether it was taken. A message whose handling fails is logged and dropped, and the
next one is handled: what one peer sends cannot close a socket for the others. Knows nothing of what the frames mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from pagechat.seldom import Seldom

log = logging.getLogger(__name__)

_BATCH = 256
"""Messages handled before the loop gets its turn."""


class LoopSocket:
    """Owns `socket`. Must be made, used and closed in the loop's thread."""

    def __init__(self, socket: zmq.Socket[bytes], on_message: Callable[[list[bytes]], None] | None = None) -> None:
        self.socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._drain_due = False
        self._monitor: LoopSocket | None = None
        self._failures = Seldom()
        if on_message is not None:
            self._loop.add_reader(socket.fileno(), self._drain)
            self._wake()

    def send(self, *frames: bytes) -> None:
        """Queues one message. Raises zmq.Again when the peer's queue is full, zmq.ZMQError when there is no peer."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        finally:
            self._wake()  # the file descriptor is edge-triggered, and a send may have taken the edge

    def drain(self) -> None:
        """Handles every message that has arrived."""
        while self._receive():
            pass

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Calls back whenever a connection of this socket ends. What it delivered before can still be drained."""

        def handle(frames: list[bytes]) -> None:
            if parse_monitor_message(frames)["event"] == zmq.EVENT_DISCONNECTED:
                callback()

        self._monitor = LoopSocket(self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED), handle)

    @property
    def closed(self) -> bool:
        return bool(self.socket.closed)

    def close(self, linger_ms: int = 0) -> None:
        if self.closed:
            return
        if self._on_message is not None:
            self._loop.remove_reader(self.socket.fileno())
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close()
        self.socket.close(linger=linger_ms)

    def _wake(self) -> None:
        if not self._drain_due and self._on_message is not None and not self.closed:
            self._drain_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_due = False
        for _ in range(_BATCH):
            if not self._receive():
                return
        self._wake()

    def _receive(self) -> bool:
        if self.closed or self._on_message is None:
            return False
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            self._on_message(frames)
        except Exception:
            self._failures.exception(log, "a message on a socket could not be handled; it was dropped")
        return True
