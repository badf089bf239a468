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

from engine.protocol import Message, encode
from pagechat import rundir
from pagechat.daemon.curve import Gatekeeper
from pagechat.daemon.discretion import discreet_message
from pagechat.daemon.http.address import Address, AddressError
from pagechat.protocol import MAX_CLIENT_FRAME
from pagechat.remote import keep_alive
from pagechat.sockets import LoopSocket

CLIENT_QUEUE = 10_000
"""Messages that wait for one client, beside what its kernel buffer holds, before it counts as lost."""

_MOST_REMEMBERED = 4096
"""Clients over TCP; one that is forgotten is known again by its next message."""

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
        router.setsockopt(zmq.MAXMSGSIZE, MAX_CLIENT_FRAME)
        router.bind(rundir.endpoint(run_dir, "clients"))
        self._router = LoopSocket(router, self._on_frames, copy=False)
        self._gatekeeper: Gatekeeper | None = None
        self.tcp: Address | None = None
        """Where clients of other machines find it, and at `telemetry_port` the telemetry."""
        self.telemetry_port: int | None = None
        self._remote: dict[bytes, None] = {}
        """Clients that came over TCP, the one that has said nothing for longest first."""

    def open_tcp(self, address: Address, gatekeeper: Gatekeeper) -> None:
        """Both sockets listen there too, telemetry at the next port; with port 0 at two free ones. Only what is bound
        from now on is guarded: in the run directory the file system is. Raises AddressError."""
        self._gatekeeper = gatekeeper
        ports = []
        for socket, port in ((self._router.socket, address.port), (self._publisher.socket, address.port + 1)):
            gatekeeper.guard(socket)
            keep_alive(socket)
            socket.ipv6 = ":" in address.host
            host = f"[{address.host}]" if socket.ipv6 else address.host
            place = f"tcp://{host}:{port if address.port else '*'}"
            try:
                socket.bind(place)
            except zmq.ZMQError as error:
                raise AddressError(f"cannot listen at {place}: {zmq.strerror(error.errno or 0)}") from None
            bound = socket.getsockopt(zmq.LAST_ENDPOINT)
            assert isinstance(bound, bytes)
            ports.append(int(bound.rpartition(b":")[2]))
        self.tcp, self.telemetry_port = Address(address.host, ports[0]), ports[1]

    def send(self, client: bytes, message: Message) -> bool:
        """Queues a message; False when the client is lost, after `on_lost(client, message, gone)`."""
        outcome = self.try_send(client, message)
        if outcome != "sent":
            self._on_lost(client, message, outcome == "gone")
        return outcome == "sent"

    def try_send(self, client: bytes, message: Message) -> Literal["sent", "full", "gone"]:
        """Queues a message, or says why not: the client does not read, or it is not there any more."""
        try:
            self._router.send(client, encode(discreet_message(message) if client in self._remote else message))
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
        if self._gatekeeper is not None:
            self._gatekeeper.close()

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        # A client of ours sends one frame; of several the last is the message, as a REQ socket would send it.
        client = frames[0].bytes
        if self.tcp is not None and _is_known_by_key(frames[-1]):
            self._remote.pop(client, None)
            self._remote[client] = None
            if len(self._remote) > _MOST_REMEMBERED:
                del self._remote[next(iter(self._remote))]
        self._on_frame(client, frames[-1].bytes)


def _is_known_by_key(frame: zmq.Frame) -> bool:
    """It came over TCP: in the run directory nobody has a key."""
    try:
        return bool(frame.get("User-Id"))
    except zmq.ZMQError:
        return False
