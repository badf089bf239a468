"""What every HTTP request passes before a route sees it: its host, its key, its size; and it gets a request id.

- While no key is asked for, only this machine's own names are taken for a host: a page on the web whose name was
  made to point here (DNS rebinding) is turned away. No CORS header is ever sent.
- With keys, every route but /health needs one: `Authorization: Bearer KEY`, or KEY as a browser's password.
- Bodies are counted as they come, whatever their headers promise.
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
from pagechat.daemon.http.keys import ANYBODY, Key, Keys
from pagechat.daemon.http.refusal import ApiError

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 8 * 2**20
_TOO_LARGE = f"the body may have {MAX_BODY:,} bytes"
MAX_HEADERS = 64
MAX_HEADER_BYTES = 32 * 1024
MAX_LABEL = 128
"""Characters of a request id that a client chose."""

OPEN_PATHS = frozenset({"/health"})
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Gate:
    """ASGI: an application with this before it."""

    def __init__(self, app: App, keys: Keys, log: AccessLog | None = None) -> None:
        self._app, self._keys, self._log = app, keys, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        label = headers.get(b"x-request-id", "")
        if not 0 < len(label) <= MAX_LABEL or not label.isprintable():
            label = f"req-{secrets.token_hex(8)}"

        status, begun = 0, time.monotonic()

        async def labelled(event: Event) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                event["headers"] = [*event["headers"], (b"x-request-id", label.encode("latin-1"))]
            await send(event)

        state: dict[str, Any] = scope["state"] | {"key": ANYBODY, "request_id": label}
        scope["state"] = state
        try:
            size = sum(len(name) + len(value) for name, value in scope["headers"])
            if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEADER_BYTES:
                raise ApiError(431, f"a request may have {MAX_HEADERS} headers and {MAX_HEADER_BYTES:,} bytes of them")
            _check_length(headers.get(b"content-length", "0"))
            state["key"] = self._key(scope["path"], headers)
            await self._app(scope, _counted(receive), labelled)
        except ApiError as error:
            await respond(error)(scope, receive, labelled)
        finally:
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
            name = re.sub(r":[0-9]*$", "", headers.get(b"host", ""))
            if name.lower() not in _OWN_NAMES:
                raise ApiError(
                    403, f"this daemon asks for no key and so answers to localhost only, not to {name[:200]!r}"
                )
            return ANYBODY
        secret = _secret(headers.get(b"authorization", ""))
        key = self._keys.find(secret) if secret else None
        if key is None:
            words = "this API key is not known" if secret else "no API key: send the header Authorization: Bearer KEY"
            raise ApiError(401, words, code="invalid_api_key")
        return key


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


def _counted(receive: Receive) -> Receive:
    """Refuses a body that is larger than it may be, once it is."""
    size = 0

    async def counting() -> Event:
        nonlocal size
        event = await receive()
        size += len(event.get("body", b""))
        if size > MAX_BODY:
            raise HTTPException(413, _TOO_LARGE)  # the only kind that FastAPI lets through while it reads a body
        return event

    return counting
