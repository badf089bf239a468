"""uvicorn inside the front's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from pagechat.daemon.http.burst import BurstProtocol, Outbox
from pagechat.daemon.http.connections import Connections
from pagechat.seldom import SeldomFilter

MAX_HEADER_BYTES = 64 * 1024
_KEEP_ALIVE_S = 60
_BACKLOG = 256
"""Connections that are taken in one turn of the loop."""


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
            http=partial(BurstProtocol, Outbox(), Connections()),  # type: ignore[arg-type]
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ssl_certfile=chain,
            ssl_keyfile=key,
        )
        for name in ("uvicorn.error", "asyncio"):  # what they say of connections anybody can make them say
            logger = logging.getLogger(name)
            if not any(isinstance(one, SeldomFilter) for one in logger.filters):
                logger.addFilter(SeldomFilter())
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
