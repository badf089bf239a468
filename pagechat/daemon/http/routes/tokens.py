"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from pagechat.daemon.http.call import service_of
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.schemas.tokens import DetokenizeBody, TokenizeBody

router = APIRouter(responses=documented(400, 404, 413, 500, 503))


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> dict[str, Any]:
    """The very ids that a request with this prompt, or these messages, would be answered from."""
    service = service_of(request)
    engine = service.check_model(body.model)
    tokens = await service.answering.tokens(body.text())
    found: dict[str, Any] = {"count": len(tokens), "max_model_len": engine.model.max_context, "tokens": tokens}
    _, text = service.ready()
    return found | {"token_strs": [text.token_text(token) for token in tokens]} if body.return_token_strs else found


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> dict[str, str]:
    """The text of token ids, control tokens by their names."""
    service = service_of(request)
    service.check_model(body.model)
    _, text = service.ready()
    return {"prompt": text.decode(body.tokens)}
