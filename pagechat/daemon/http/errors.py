"""Every error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Its words tell what to change.

Text from inside (exceptions, paths) never leaves; the log has it.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from engine.protocol import ErrorCode
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.refusal import ApiError

log = logging.getLogger(__name__)

_STATUS: dict[ErrorCode, int] = {
    "bad_request": 400,
    "too_long": 400,
    "engine_died": 503,
    "engine_failed": 503,
    "shutting_down": 503,
    "busy": 503,
    "version_mismatch": 500,
    "overloaded": 503,
    "internal": 500,
}
_CODES: dict[str, str] = {"too_long": "context_length_exceeded", "bad_request": "invalid_value"}


def from_request_error(error: RequestError) -> ApiError:
    """What the daemon says of a request, as HTTP says it."""
    return ApiError(_STATUS[error.code], error.message, code=_CODES.get(error.code, error.code), param=error.param)


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The shape of every error."""

    error: ErrorDetail


STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "OpenAI's object, or with stream: true its chunks as server-sent events",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
"""FastAPI's `responses` for an answer."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for these."""
    return {status: {"model": ErrorBody} for status in statuses}


def respond(error: ApiError) -> Response:
    return Response(msgspec.json.encode(error.body), error.status, headers=error.headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """From now on the application says every error in this shape."""

    @app.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> Response:
        return respond(error)

    @app.exception_handler(RequestError)
    async def of_the_daemon(request: Request, error: RequestError) -> Response:
        return respond(from_request_error(error))

    @app.exception_handler(RequestValidationError)
    async def of_the_body(request: Request, error: RequestValidationError) -> Response:
        return respond(from_validation(error.errors()))

    @app.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> Response:
        path, allowed = request.url.path, (error.headers or {}).get("Allow", "")
        words = {
            404: f"there is no {path} here; /openapi.json lists what there is",
            405: f"{path} takes {allowed}, not {request.method}",
        }
        response = respond(ApiError(error.status_code, words.get(error.status_code, str(error.detail))))
        if allowed:
            response.headers["allow"] = allowed
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("a request to %s failed", request.url.path, exc_info=error)
        return respond(ApiError(500, "the daemon failed on this request; its log says more", code="internal"))


def from_validation(errors: Iterable[Any]) -> ApiError:
    """The first field that is wrong, of pydantic's errors; where it may have several forms, what is wrong deepest
    inside it."""
    problems = [(_field(error), _words(error), error["type"]) for error in errors]
    first = problems[0][0]
    field, _, kind = max((problem for problem in problems if problem[0].startswith(first)), key=lambda p: len(p[0]))
    words = list(dict.fromkeys(said for name, said, _ in problems if name == field))
    code = "unknown_parameter" if kind == "extra_forbidden" else "invalid_value"
    return ApiError(400, f"{field or 'the body'}: {', or '.join(words)}", param=field or None, code=code)


def _words(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown field; the daemon would not honour it, so leave it out"
        case "missing" if len(error["loc"]) == 1:
            return "missing; send JSON with the header content-type: application/json"
        case "json_invalid":
            return f"not valid JSON ({error['ctx']['error']})"
        case "model_attributes_type" | "model_type":
            return "should be a JSON object, sent with the header content-type: application/json"
        case "value_error":
            return str(error["ctx"]["error"])
        case "wrong_field":
            return str(error["ctx"]["words"])
    return str(error["msg"])[:1].lower() + str(error["msg"])[1:]


def _field(error: Any) -> str:
    """("body", "messages", 0, "user", "content", "str") -> "messages[0].content": pydantic also names which of
    several allowed forms it tried."""
    if error["type"] == "json_invalid":
        return ""
    if error["type"] == "wrong_field":
        return str(error["ctx"]["field"])
    unknown = error["type"] == "extra_forbidden"
    last = len(error["loc"]) - 1
    text = ""
    for place, (before, part) in enumerate(itertools.pairwise(error["loc"]), start=1):
        if isinstance(part, int):
            text += f"[{part}]"
        elif (place == last and unknown) or not _names_a_form(before, part):
            text += f".{part[:80]}"
    return text.lstrip(".")


def _names_a_form(before: Any, part: str) -> bool:
    return part in _FORMS or not re.fullmatch(r"[a-z0-9_]+", part) or (isinstance(before, int) and part in _ROLES)


_FORMS = frozenset({"str", "int", "float", "bool", "none", "list", "dict"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
