"""The FastAPI application."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from pagechat import __version__
from pagechat.daemon.http import errors
from pagechat.daemon.http.access_log import AccessLog
from pagechat.daemon.http.exchange import ClientGone
from pagechat.daemon.http.gate import Gate
from pagechat.daemon.http.keys import Keys
from pagechat.daemon.http.origin import Pages
from pagechat.daemon.http.routes import chat, completions, health, operations, pool, responses, sessions, tokens
from pagechat.daemon.http.service import Service, now

_CLIENT_CLOSED = 499
"""nginx's status for a client that left; nobody reads it."""


def make(service: Service, keys: Keys, log: AccessLog | None = None, pages: Pages | None = None) -> ASGIApp:
    """The gate, and behind it every route. No interactive documentation: its pages load scripts from elsewhere."""
    app = FastAPI(
        title="pagechat",
        version=__version__,
        description="The OpenAI-compatible door of pagechat-daemon.",
        docs_url=None,
        redoc_url=None,
        responses=errors.documented(401, 403, 431),
    )
    app.state.service = service
    app.state.created = now()
    errors.install(app)

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=_CLIENT_CLOSED)

    for module in (chat, completions, responses, tokens, health, pool, sessions, operations):
        app.include_router(module.router)
    return Gate(app, keys, log, pages, service.admission.rates)
