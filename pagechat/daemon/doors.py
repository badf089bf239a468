"""The two sockets that clients reach: one for requests and answers, one that publishes telemetry.

A client that has vanished is noticed at the next thing sent to it. One that does not read is treated alike once
its queue is full, so nobody's slowness costs another client anything. Both are reported to `on_lost`, with the
message that could not be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import zmq

from engine import protocol
from engine.protocol import Message
from pagechat import rundir
from pagechat.sockets import LoopSocket

CLIENT_QUEUE = 10_000
"""Messages that wait for one client, beside what its kernel buffer holds, before it counts as lost."""

TELEMETRY_QUEUE = 1_000
"""Reports that wait for one subscriber; then it loses some, and its mirror sees the gap."""


class Doors:
    """Bound from the start; `close` sends what is queued and removes the socket files."""

    def __init__(
        self,
        run_dir: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        on_frame: Callable[[bytes, bytes], None],
        on_lost: Callable[[bytes, Message, bool], None],
        client_queue: int = CLIENT_QUEUE,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self.telemetry_endpoint = rundir.endpoint(run_dir, "telemetry")
        publisher = context.socket(zmq.PUB)
        publisher.setsockopt(zmq.SNDHWM, TELEMETRY_QUEUE)
        publisher.bind(self.telemetry_endpoint)
        self._publisher = LoopSocket(publisher)
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, client_queue)
        router.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_CLIENT_FRAME)
        router.bind(rundir.endpoint(run_dir, "clients"))
        self._router = LoopSocket(router, self._on_frames)

    def send(self, client: bytes, message: Message) -> bool:
        """Queues a message; False when the client is lost, after `on_lost(client, message, gone)`."""
        outcome = self.try_send(client, message)
        if outcome != "sent":
            self._on_lost(client, message, outcome == "gone")
        return outcome == "sent"

    def try_send(self, client: bytes, message: Message) -> Literal["sent", "full", "gone"]:
        """Queues a message, or says why not: the client does not read, or it is not there any more."""
        try:
            self._router.send(client, protocol.encode(message))
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return "gone"
        return "sent"

    def publish(self, frame: bytes) -> None:
        self._publisher.send(frame)

    def close(self, linger_ms: int) -> None:
        self._router.close(linger_ms)
        self._publisher.close(linger_ms)

    def _on_frames(self, frames: list[bytes]) -> None:
        # A client of ours sends one frame; of several the last is the message, as a REQ socket would send it.
        self._on_frame(frames[0], frames[-1])
