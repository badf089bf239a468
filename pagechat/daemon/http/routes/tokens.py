"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from pagechat.daemon.http.bodies import BodyRoute
from pagechat.daemon.http.call import key_of, service_of
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.schemas.tokens import DetokenizeBody, TokenizeBody

router = APIRouter(route_class=BodyRoute, responses=documented(400, 404, 413, 500, 503))


_SMALL = 1024
"""Tokens whose text is made at once, in the loop."""


@router.post("/tokenize", response_class=JSONResponse, response_model=dict[str, Any])
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """The very ids that a request with this prompt, or these messages, would be answered from."""
    service, tenant = service_of(request), key_of(request).name
    engine = service.check_model(body.model)
    prompt = body.text()
    tokens = await service.answering.tokens(prompt, tenant)
    _, text = service.ready()

    def told() -> Response:
        found: dict[str, Any] = {"count": len(tokens), "max_model_len": engine.model.max_context, "tokens": tokens}
        if body.return_token_strs:
            found["token_strs"] = [text.token_text(token) for token in tokens]
        return _json(found)

    return told() if len(tokens) <= _SMALL else await service.answering.heavy.run(tenant, told)


@router.post("/detokenize", response_class=JSONResponse, response_model=dict[str, str])
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of token ids, control tokens by their names."""
    service, tenant = service_of(request), key_of(request).name
    service.check_model(body.model)
    _, text = service.ready()

    def told() -> Response:
        return _json({"prompt": text.decode(body.tokens)})

    return told() if len(body.tokens) <= _SMALL else await service.answering.heavy.run(tenant, told)


def _json(found: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(found), media_type="application/json")
