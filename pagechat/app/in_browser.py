"""`pagechat serve`: the app in a web browser. textual-serve runs one `pagechat` for each visitor.

It listens on 127.0.0.1 only, and answers only requests that name this machine: a page of another site must not be
able to point its own name at 127.0.0.1 and read the chats (DNS rebinding), nor open the socket from there.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from textual_serve.server import Server

HOST = "127.0.0.1"


def serve(port: int, *, theme: str | None, run_dir: Path | None) -> int:
    """Until Ctrl-C. Returns the exit code."""
    server = LocalServer(command(theme, run_dir), host=HOST, port=port, title="pagechat")
    print(f"pagechat: http://{HOST}:{port}  (Ctrl-C ends it)", file=sys.stderr)
    try:
        server.serve()
    except OSError as error:
        print(f"pagechat: port {port} cannot be used: {error.strerror}; name another with --port", file=sys.stderr)
        return 1
    return 0


def command(theme: str | None, run_dir: Path | None) -> str:
    """What each visitor gets: this same program."""
    words = [sys.executable, "-c", "from pagechat.cli import app_main; app_main()"]
    words += ["--theme", theme] if theme else []
    words += ["--run-dir", str(run_dir)] if run_dir else []
    return shlex.join(words)


class LocalServer(Server):
    """A server that this machine's own browser alone may use."""

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(only_local(self.port))
        return app


def only_local(port: int) -> Middleware:
    """Refuses requests that come from elsewhere than a page of this server."""
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.host not in hosts or (origin is not None and origin.removeprefix("http://") not in hosts):
            raise web.HTTPForbidden(text="pagechat serves this machine's browser at its own address only")
        response: web.StreamResponse = await handler(request)
        return response

    return check
