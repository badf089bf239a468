"""`pagechat serve`: the app in a web browser. textual-serve runs one `pagechat` for each visitor.

It listens on 127.0.0.1 only, and answers only requests that name this machine: a page of another site must not be
able to point its own name at 127.0.0.1 and read the chats (DNS rebinding), nor open the socket from there. Other users
of this machine reach 127.0.0.1 as well, so it answers only who knows a secret: the address that is printed at the start
has it, and whoever opens that gets a cookie, with which the address need not be kept.
"""

from __future__ import annotations

import hmac
import secrets
import shlex
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from textual_serve.server import Server

HOST = "127.0.0.1"
TOKEN = "token"  # noqa: S105  the name of the field, as Jupyter has it


def serve(port: int, *, theme: str | None, run_dir: Path | None) -> int:
    """Until Ctrl-C. Returns the exit code."""
    server = LocalServer(command(theme, run_dir), host=HOST, port=port, title="pagechat")
    print(f"pagechat: {server.address}  (Ctrl-C ends it)", file=sys.stderr)
    print("pagechat: the address opens your chats; keep it to yourself", file=sys.stderr)
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
    """A server that this machine's own browser alone may use, of the user who started it."""

    def __init__(self, command: str, host: str, port: int, title: str | None = None) -> None:
        super().__init__(command, host=host, port=port, title=title)
        self._secret = secrets.token_urlsafe(32)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"{self.public_url}/?{TOKEN}={self._secret}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(only_local(self.port, self._secret))
        return app


def only_local(port: int, secret: str | None = None) -> Middleware:
    """Refuses requests that come from elsewhere than a page of this server, and those without the secret, where one is
    given: in the address, or in the cookie that this brings."""
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    cookie = f"pagechat-{port}"  # a browser keeps one jar for all ports of a machine

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.host not in hosts or (origin is not None and origin.removeprefix("http://") not in hosts):
            raise web.HTTPForbidden(text="pagechat serves this machine's browser at its own address only")
        if secret is not None:
            if _same(request.query.get(TOKEN, ""), secret):
                return _let_in(request, f"{HOST}:{port}", cookie, secret)
            if not _same(request.cookies.get(cookie, ""), secret):
                raise web.HTTPForbidden(text="open the whole address that `pagechat serve` has printed, with its token")
        response: web.StreamResponse = await handler(request)
        return response

    return check


def _let_in(request: web.Request, home: str, cookie: str, secret: str) -> web.Response:
    """Leads to the same page without the secret in its address, which a browser remembers and shows."""
    if request.host != home:  # the page's parts are at that address, and so must the cookie be
        return web.Response(status=303, headers={"location": f"http://{home}{request.rel_url}"})
    left = request.rel_url.without_query_params(TOKEN)
    response = web.Response(
        status=303, headers={"location": str(left), "referrer-policy": "no-referrer", "cache-control": "no-store"}
    )
    response.set_cookie(cookie, secret, httponly=True, samesite="Strict", path="/")
    return response


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())
