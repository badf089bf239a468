"""How a request fails inside the front: one exception, with the code and the words the client gets."""

from __future__ import annotations

from engine.protocol import ErrorCode


class RequestError(Exception):
    """Ends one request as `Failed(code, message)`. Never harms another."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        """`param`: the field of the request that is wrong, where one is."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
