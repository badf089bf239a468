"""How a request's body is read: counted first, then decoded and checked, and all of that beside the loop where it is
large.

What is small to send may be large to read: 8 MiB of `{},` are nearly three million objects, and a wrong one costs an
error each. So the parts of a body are counted on its bytes, before the first object is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from pagechat.daemon.http.call import key_of, service_of
from pagechat.daemon.http.errors import from_validation
from pagechat.daemon.http.exchange import ClientGone
from pagechat.daemon.http.refusal import ApiError

MAX_VALUES = 2**20 + 2**17
"""Of all kinds; a million token ids are among them."""
MAX_STRINGS = 2**17
"""Names of fields are strings too."""
MAX_CONTAINERS = 2**15
"""Objects and arrays."""

_SMALL = 32 * 2**10
"""Bytes of a body that is read at once, in the loop: that takes a few milliseconds at most."""
_EXPLAINED = 256 * 2**10
"""Bytes of a body that is read a second time, more slowly, to say what is wrong with it."""


class ReadRequest(Request):
    """A request whose body has been read."""

    content: Any = None

    async def json(self) -> Any:
        return self.content


class BodyRoute(APIRoute):
    """A route whose body is read by this module."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = self.body_field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)

        async def read(request: Request) -> Response:
            own = ReadRequest(request.scope, request.receive)
            try:
                body = await own.body()
            except ClientDisconnect:
                raise ClientGone from None
            if not body or not _is_json(own.headers.get("content-type", "")):
                return await handle(own)  # which refuses it
            if len(body) <= _SMALL:
                own.content = parse(model, body)
            else:
                own.content = await service_of(own).answering.heavy.run(key_of(own).name, parse, model, body)
            return await handle(own)

        return read


def parse(model: type[BaseModel], body: bytes) -> BaseModel:
    """The body as what it should be. Raises ApiError."""
    check_counts(body)
    try:
        return model.model_validate(_decode(body))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise from_validation([{**one, "loc": ("body", *one["loc"])} for one in found]) from None


def check_counts(body: bytes) -> None:
    """Raises ApiError for more parts than any request needs. Commas and brackets inside strings are text."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") < min(MAX_VALUES, MAX_CONTAINERS, MAX_STRINGS // 2):
        return
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 2
    if strings > MAX_STRINGS:
        raise _too_many("strings", strings, MAX_STRINGS)
    bare = b"".join(plain.split(b'"')[::2])
    containers = bare.count(b"[") + bare.count(b"{")
    if containers > MAX_CONTAINERS:
        raise _too_many("objects and arrays", containers, MAX_CONTAINERS)
    values = bare.count(b",") + containers
    if values > MAX_VALUES:
        raise _too_many("values", values, MAX_VALUES)


def _too_many(what: str, count: int, limit: int) -> ApiError:
    return _unread(f"it holds {count:,} {what}, and {limit:,} is the limit")


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise _unread("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if len(body) > _EXPLAINED:
            raise _not_json(str(error)) from None
    try:
        return json.loads(body)  # whose words people know; it also takes NaN and the like, which a field then refuses
    except RecursionError:
        raise _unread("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _not_json(error.msg) from None
    except UnicodeDecodeError:
        raise _unread("it is not UTF-8") from None
    except ValueError:  # Python's own limit of a whole number's digits
        raise _unread("a number in it is too long") from None


def _unread(words: str) -> ApiError:
    return ApiError(400, f"there was an error parsing the body: {words}", code="invalid_value")


def _not_json(words: str) -> ApiError:
    return ApiError(400, f"the body: not valid JSON ({words})", code="invalid_value")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))
