"""How an HTTP request is refused: a status and words, in OpenAI's shape. Knows no web framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagechat.daemon.http.keys import Key

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}

RETRY_S = 5
"""What Retry-After says: about as long as a replaced engine or a full queue needs."""


class ApiError(Exception):
    """Ends one HTTP request with a status and words for its client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_s: int = RETRY_S,
    ) -> None:
        """`retry_s`: for Retry-After, where the status has one."""
        super().__init__(message)
        self.retry_s = retry_s
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"www-authenticate": 'Bearer realm="pagechat", Basic realm="pagechat"'}
        return {"retry-after": str(self.retry_s)} if self.status in (429, 503) else {}


def needs(key: Key, scope: str) -> ApiError:
    """What a key without this scope is told."""
    words = f"key {key.name!r} has the scopes {', '.join(key.scopes)}; this needs {scope}"
    return ApiError(403, words, code="scope_missing")
