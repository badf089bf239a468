"""Where the HTTP door is: HOST:PORT, and what a listener beyond this machine needs."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

DEFAULT_PORT = 8008


class AddressError(Exception):
    """The door cannot be opened there; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT = Address("127.0.0.1", DEFAULT_PORT)


def parse(text: str) -> Address:
    """ "HOST:PORT", "[IPV6]:PORT", ":PORT" or "PORT". Raises AddressError."""
    host, _, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in bare and host == bare):
        raise AddressError(f"{text!r} is no address: write HOST:PORT, like {DEFAULT}")
    return Address(bare or DEFAULT.host, int(port))


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises AddressError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressError(_why(address, error)) from None
    return listener


def _why(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} of {address.host} is in use; choose another with --http, or --no-http"
    if error.errno == errno.EACCES:
        return f"port {address.port} is reserved for the system; choose one above 1023 with --http"
    return f"cannot listen at {address}: {error.strerror}"
