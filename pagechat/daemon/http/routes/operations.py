"""/metrics for Prometheus, and / for people: the pool live in a browser."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pagechat.daemon.http.call import service_of
from pagechat.daemon.http.errors import documented

router = APIRouter(responses=documented(500))

_PAGE = files("pagechat.daemon.http").joinpath("page.html").read_bytes()
_PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """vLLM's names under our prefix; docs/http.md lists them."""
    service = service_of(request)
    text = service.metrics.text(service.status(), service.admission)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """One file without resources of its own, which asks /v1/pool once a second."""
    headers = {"content-security-policy": _PAGE_POLICY, "x-content-type-options": "nosniff", "x-frame-options": "DENY"}
    return Response(_PAGE, media_type="text/html", headers=headers)
