"""The HTTP door as the front sees it: an address that listens from the start, and a server once it has been loaded.

Loading FastAPI takes about as long as the rest of the front, so it happens in a thread while the engine loads its
model; who connects earlier waits in the listener's queue.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pagechat.daemon.http import address as addresses
from pagechat.daemon.http.access_log import AccessLog
from pagechat.daemon.http.address import DEFAULT, Address, AddressError
from pagechat.daemon.http.admission import Limits
from pagechat.daemon.http.keys import Keys, default_path
from pagechat.daemon.http.metrics import PREFIX
from pagechat.daemon.http.origin import Pages

if TYPE_CHECKING:
    from pagechat.daemon.http.server import HttpServer
    from pagechat.daemon.http.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPlan:
    """How the door is to be."""

    address: Address = DEFAULT
    keys: Path | None = None
    """The file of its API keys; None: the user's own."""
    tls: tuple[Path, Path] | None = None
    """Certificate chain and private key; None: plain HTTP."""
    limits: Limits = field(default_factory=Limits)
    metrics_prefix: str = PREFIX
    log: Path | None = None
    """Gets a line for each request."""
    pages: Pages = field(default_factory=Pages)


@dataclass(slots=True)
class HttpDoor:
    """Make it with `listen`."""

    plan: HttpPlan
    url: str
    _listener: socket.socket
    _keys: Keys
    _log: AccessLog | None
    _server: HttpServer | None = field(default=None, init=False)

    @classmethod
    def listen(cls, plan: HttpPlan) -> HttpDoor:
        """Raises AddressError, KeysError."""
        known = Keys(plan.keys or default_path())
        address = plan.address
        if plan.tls is not None:
            _check_certificate(*plan.tls)
        if not known.required and not address.loopback:
            raise AddressError(
                f"{address} can be reached from other machines, and no API key is asked for; make one with "
                "`pagechat-daemon keys add NAME`, or listen at 127.0.0.1"
            )
        if "*" in plan.pages.origins and not known.required:
            raise AddressError(
                "--cors-origin '*' lets every page on the web use this daemon, and no API key is asked for; make one "
                "with `pagechat-daemon keys add NAME`, or name the pages' origin"
            )
        listener = addresses.bind(address)
        try:
            log = AccessLog(plan.log) if plan.log is not None else None
        except OSError as error:
            listener.close()
            raise AddressError(f"cannot write the log {plan.log}: {error.strerror}") from None
        port = listener.getsockname()[1]
        scheme = "http" if plan.tls is None else "https"
        return cls(plan, f"{scheme}://{Address(address.host, port)}", listener, known, log)

    async def serve(self, service: Service) -> None:
        """Returns when requests are being answered."""
        self._server = await asyncio.to_thread(self._load, service)
        self._server.start()

    async def stop(self, patience_s: float) -> None:
        if self._server is None:
            self._listener.close()
        else:
            await self._server.stop(patience_s)
        if self._log is not None:
            self._log.close()
            self._log = None

    def _load(self, service: Service) -> HttpServer:
        from pagechat.daemon.http.app import make
        from pagechat.daemon.http.server import HttpServer

        return HttpServer(make(service, self._keys, self._log, self.plan.pages), self._listener, self.plan.tls)


def _check_certificate(chain: Path, key: Path) -> None:
    """Raises AddressError for what cannot be served with."""
    try:
        # a password could only be asked for at a terminal, and a service has none
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=lambda: b"")
    except OSError as error:  # ssl.SSLError is one
        raise AddressError(
            f"cannot serve HTTPS with {chain} and {key}: {error.strerror or error}; they must be a certificate and its "
            "private key, in PEM and without a password"
        ) from None
