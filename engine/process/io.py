"""The engine's sockets: one thread that moves frames between ZeroMQ and two queues.

The step loop never touches a socket that can block and never waits for a peer. ZeroMQ sockets belong
to one thread each: the thread owns the two outer ones, the step loop owns only the inner `PUSH` that
wakes the thread.
"""

from __future__ import annotations

import queue
import threading

import zmq

from engine import protocol
from engine.protocol import Command, Message, StepReport

_WAKE = "inproc://engine-outbox"


class EngineIO:
    """Commands in, replies and telemetry out."""

    def __init__(self, command_endpoint: str, telemetry_endpoint: str) -> None:
        self._context = zmq.Context()
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[tuple[bool, bytes] | None] = queue.SimpleQueue()
        wake_end = self._context.socket(zmq.PULL)
        wake_end.bind(_WAKE)
        self._wake = self._context.socket(zmq.PUSH)
        self._wake.connect(_WAKE)
        self._thread = threading.Thread(
            target=self._run, args=(wake_end, command_endpoint, telemetry_endpoint), name="engine-io", daemon=True
        )
        self._thread.start()

    def take(self, timeout: float | None) -> Command | None:
        """The next command; None after `timeout` seconds (None waits for ever, 0 not at all)."""
        try:
            return self._commands.get(block=timeout != 0, timeout=timeout or None)
        except queue.Empty:
            return None

    def reply(self, message: Message) -> None:
        """Queue a message for the front."""
        self._put(False, message)

    def publish(self, report: StepReport) -> None:
        """Queue a telemetry frame; subscribers that are too slow lose it and notice the gap."""
        self._put(True, report)

    def close(self) -> None:
        """Send what is queued (waiting a second at most) and end the thread."""
        self._outbox.put(None)
        self._wake.send(b"")
        self._thread.join(timeout=3)
        self._wake.close(linger=0)
        self._context.term()

    def _put(self, telemetry: bool, message: Message) -> None:
        self._outbox.put((telemetry, protocol.encode(message)))
        self._wake.send(b"")

    def _run(self, wake_end: zmq.Socket[bytes], command_endpoint: str, telemetry_endpoint: str) -> None:
        front = self._context.socket(zmq.DEALER)
        front.set_hwm(0)
        front.connect(command_endpoint)
        telemetry = self._context.socket(zmq.PUB)
        telemetry.connect(telemetry_endpoint)
        poller = zmq.Poller()
        poller.register(front, zmq.POLLIN)
        poller.register(wake_end, zmq.POLLIN)
        open_ = True
        while open_:
            ready = dict(poller.poll())
            if front in ready:
                frame = front.recv()
                try:
                    self._commands.put(protocol.decode_command(frame))
                except protocol.ProtocolError as error:
                    front.send(protocol.encode(protocol.refusal(frame, error)))
            if wake_end in ready:
                wake_end.recv()
                item = self._outbox.get_nowait()
                if item is None:
                    open_ = False
                else:
                    is_telemetry, frame = item
                    (telemetry if is_telemetry else front).send(frame)
        front.close(linger=1000)
        telemetry.close(linger=100)
        wake_end.close(linger=0)
