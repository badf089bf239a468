"""uvicorn inside the front's loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from pagechat.daemon.http.burst import BurstProtocol, Outbox

MAX_HEADER_BYTES = 64 * 1024
_KEEP_ALIVE_S = 60


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the daemon's."""
        yield


class HttpServer:
    """Listens from `start` until `stop`."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: tuple[Path, Path] | None = None) -> None:
        """`tls`: certificate chain and private key."""
        chain, key = tls or (None, None)
        config = uvicorn.Config(
            app,
            http=partial(BurstProtocol, Outbox()),  # type: ignore[arg-type]
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ssl_certfile=chain,
            ssl_keyfile=key,
        )
        self._server = _Server(config)
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve([self._listener]))

    async def stop(self, patience_s: float) -> None:
        """Takes no more connections and waits for what is under way, so long at most."""
        if self._serving is None:
            self._listener.close()
            return
        self._server.should_exit = True
        await asyncio.wait((self._serving,), timeout=patience_s)
        if not self._serving.done():
            self._server.force_exit = True
            await asyncio.wait((self._serving,))
