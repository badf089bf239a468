"""/v1/pool and /v1/usage: what the daemon does now, and who has used what."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from engine.protocol import GetUsage, UsageReport
from pagechat.daemon.http.call import key_of, service_of, session_label
from pagechat.daemon.http.errors import documented

router = APIRouter(prefix="/v1", responses=documented(500))


@router.get("/pool")
async def pool(request: Request, blocks: bool = False) -> dict[str, Any]:
    """As `pagechat-daemon status --json`: engine, block pool, scheduler, throughput, requests with their priorities,
    and how other policies would fare. Answered in every state; a key sees its own requests. With ?blocks=true also
    each block: "." free, ":" cached, "+" active, "#" shared."""
    found: dict[str, Any] = msgspec.to_builtins(service_of(request).status())
    del found["type"], found["ticket"]
    if name := key_of(request).name:
        prefix = session_label(key_of(request), "")
        found["requests"] = [
            one | {"session": one["session"].removeprefix(prefix)} for one in found["requests"] if one["tenant"] == name
        ]
    return found | {"blocks": service_of(request).block_map()} if blocks else found


@router.get("/usage", responses=documented(503))
async def usage(request: Request) -> dict[str, Any]:
    """Tokens and block-seconds by session since the engine started; a key sees its own."""
    service, key = service_of(request), key_of(request)
    service.ready()
    report: UsageReport = await service.supervisor.ask(lambda ticket: GetUsage(ticket=ticket))
    found: dict[str, Any] = msgspec.to_builtins(report)
    del found["type"], found["ticket"]
    if key.name:
        prefix = session_label(key, "")
        found["tenants"] = [one for one in found["tenants"] if one["name"] == key.name]
        found["sessions"] = [
            one | {"name": one["name"].removeprefix(prefix)} for one in found["sessions"] if one["tenant"] == key.name
        ]
        del found["unowned_block_seconds"]
    return found
