"""Is it there, is it ready, what is it: /health, /ready, /version, /v1/models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from engine import protocol
from pagechat import __version__
from pagechat.daemon.http.call import service_of
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.refusal import ApiError

router = APIRouter(responses=documented(500))


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=documented(503))
async def health(request: Request) -> dict[str, str]:
    """200 while a model answers; 503 while it loads, is being replaced, or has failed. Needs no key."""
    supervisor = service_of(request).supervisor
    if supervisor.state != "ready":
        raise ApiError(503, f"the model is not ready: {supervisor.words}", code=supervisor.state)
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses=documented(503))
async def ready(request: Request) -> dict[str, str]:
    """200 while a new request would be let in: as /health, and the queue is not full."""
    service = service_of(request)
    service.ready()
    if service.admission.waiting >= service.admission.limits.waiting:
        raise ApiError(503, "the queue is full", code="queue_requests")
    return {"status": "ok"}


@router.get("/version")
async def version() -> dict[str, Any]:
    return {"version": __version__, "protocol": protocol.VERSION}


@router.get("/v1/models", responses=documented(503))
async def models(request: Request) -> dict[str, Any]:
    """The one model that is served."""
    return {"object": "list", "data": [_model(request)]}


@router.get("/v1/models/{name:path}", responses=documented(404, 503))
async def model(name: str, request: Request) -> dict[str, Any]:
    service_of(request).check_model(name)
    return _model(request)


def _model(request: Request) -> dict[str, Any]:
    engine, _ = service_of(request).ready()
    return {
        "id": engine.model.name,
        "object": "model",
        "created": request.app.state.created,
        "owned_by": "pagechat",
        "root": engine.model.name,
        "parent": None,
        "max_model_len": engine.model.max_context,
    }
