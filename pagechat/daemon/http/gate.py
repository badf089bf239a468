"""What every HTTP request passes before a route sees it: its host, its key, its size; and it gets a request id.

- While no key is asked for, only this machine's own names are taken for a host: a page on the web whose name was
  made to point here (DNS rebinding) is turned away. Pages of other origins are too (origin.py), with a key or without.
- With keys, every route but /health needs one: `Authorization: Bearer KEY`, or KEY as a browser's password. What it
  may do is decided here, by the path: what is not named below needs the scope `use`.
- Bodies are counted as they come, whatever their headers promise; all together too.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from pagechat.daemon.http.access_log import AccessLog
from pagechat.daemon.http.errors import respond
from pagechat.daemon.http.keys import ANYBODY, Key, Keys, Scope
from pagechat.daemon.http.origin import Pages, preflight, readable
from pagechat.daemon.http.rates import Rates
from pagechat.daemon.http.refusal import ApiError, needs

Scope_ = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope_, Receive, Send], Awaitable[None]]

MAX_BODY = 8 * 2**20
_TOO_LARGE = f"the body may have {MAX_BODY:,} bytes"
MAX_HEADERS = 64
MAX_HEADER_BYTES = 32 * 1024
MAX_LABEL = 128
"""Characters of a request id that a client chose."""

MAX_BODIES = 256 * 2**20
"""Bytes of all bodies that are being read; small ones are let in all the same."""
_SMALL_BODY = 64 * 2**10

OPEN_PATHS = frozenset({"/health"})
_ANY_KEY = re.compile(r"/|/ready|/version|/openapi\.json|/v1/models(/.*)?|/v1/pool|/v1/usage")
"""What any key may ask; the last two tell a key of what it may know."""
_SCOPES: tuple[tuple[re.Pattern[str], Scope], ...] = (
    (re.compile(r"/metrics"), "observe"),
    (re.compile(r"/v1/sessions/.*/pin"), "pin"),
)


class Gate:
    """ASGI: an application with this before it."""

    def __init__(
        self,
        app: App,
        keys: Keys,
        log: AccessLog | None = None,
        pages: Pages | None = None,
        rates: Rates | None = None,
    ) -> None:
        self._app, self._keys, self._log = app, keys, log
        self._pages, self._rates = pages or Pages(), rates or Rates()
        self._bodies = 0
        """Bytes of bodies that are being read."""

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        label = headers.get(b"x-request-id", "")
        if not 0 < len(label) <= MAX_LABEL or not label.isprintable():
            label = f"req-{secrets.token_hex(8)}"

        status, begun = 0, time.monotonic()

        async def labelled(event: Event) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                more = [(b"x-request-id", label.encode("latin-1")), *self._rates.headers(state["key"])]
                event["headers"] = [*event["headers"], *more, *(readable(origin) if origin else ())]
            await send(event)

        state: dict[str, Any] = scope["state"] | {"key": ANYBODY, "request_id": label, "body": 0}
        scope["state"] = state
        origin: str | None = None
        try:
            size = sum(len(name) + len(value) for name, value in scope["headers"])
            if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEADER_BYTES:
                raise ApiError(431, f"a request may have {MAX_HEADERS} headers and {MAX_HEADER_BYTES:,} bytes of them")
            _check_length(headers.get(b"content-length", "0"))
            origin = self._pages.check(scope["method"], headers)
            if asked := preflight(scope["method"], origin, headers):
                origin = None  # it is among these
                await labelled({"type": "http.response.start", "status": 204, "headers": asked})
                await send({"type": "http.response.body", "body": b""})
                return
            state["key"] = self._key(scope["path"], headers)
            self._check_scope(state["key"], scope["path"])
            await self._app(scope, self._counted(receive, state), labelled)
        except ApiError as error:
            await respond(error)(scope, receive, labelled)
        finally:
            self._forget_body(state)
            if self._log is not None:
                self._log.write(
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    seconds=time.monotonic() - begun,
                    key=state["key"].name,
                    request_id=label,
                )

    def _key(self, path: str, headers: dict[bytes, str]) -> Key:
        """Whose request it is. Raises ApiError."""
        if path in OPEN_PATHS:
            return ANYBODY
        if not self._keys.required:
            self._pages.check_host(headers.get(b"host", ""))
            return ANYBODY
        secret = _secret(headers.get(b"authorization", ""))
        key = self._keys.find(secret) if secret else None
        if key is None:
            words = "this API key is not known" if secret else "no API key: send the header Authorization: Bearer KEY"
            raise ApiError(401, words, code="invalid_api_key")
        return key

    def _check_scope(self, key: Key, path: str) -> None:
        """Raises ApiError for what this key may not do, or not yet again."""
        if path in OPEN_PATHS or _ANY_KEY.fullmatch(path):
            return
        scope: Scope = next((scope for pattern, scope in _SCOPES if pattern.fullmatch(path)), "use")
        if not key.may(scope):
            raise needs(key, scope)
        if scope != "observe":
            self._rates.request(key)

    def _counted(self, receive: Receive, state: dict[str, Any]) -> Receive:
        """Refuses a body that is larger than it may be, once it is. HTTPException is the only kind that FastAPI lets
        through while it reads a body."""

        async def counting() -> Event:
            event = await receive()
            size = len(event.get("body", b""))
            state["body"] += size
            self._bodies += size
            if state["body"] > MAX_BODY:
                raise HTTPException(413, _TOO_LARGE)
            if state["body"] > _SMALL_BODY and self._bodies > MAX_BODIES:
                raise HTTPException(503, f"{MAX_BODIES:,} bytes of requests are being read; try again later")
            return event

        state["forget_body"] = lambda: self._forget_body(state)
        return counting

    def _forget_body(self, state: dict[str, Any]) -> None:
        """Nobody has it in memory any more. A second call does nothing."""
        self._bodies -= state["body"]
        state["body"] = 0


def _secret(header: str) -> str:
    """The key in an Authorization header; "" when there is none."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def _check_length(promised: str) -> None:
    if not promised.isdigit() or len(promised) > 15 or int(promised) > MAX_BODY:
        raise ApiError(413, _TOO_LARGE)
