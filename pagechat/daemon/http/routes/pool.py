"""/v1/pool and /v1/usage: what the daemon does now, and who has used what."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from engine.protocol import GetUsage, UsageReport
from pagechat.daemon.discretion import discreet_status
from pagechat.daemon.http.call import key_of, service_of, session_label
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.refusal import needs

router = APIRouter(prefix="/v1", responses=documented(500))


@router.get("/pool")
async def pool(request: Request, blocks: bool = False) -> dict[str, Any]:
    """As `pagechat-daemon status --json`: engine, block pool, scheduler, throughput, requests with their priorities,
    and how other policies would fare. Answered in every state. With ?blocks=true also each block: "." free, ":" cached,
    "+" active, "#" shared. A key sees its own requests; what all do together only with the scope observe, and the
    other keys' requests only with admin."""
    key = key_of(request)
    found: dict[str, Any] = msgspec.to_builtins(discreet_status(service_of(request).status()))
    del found["type"], found["ticket"], found["pid"], found["engine_pid"]
    if not key.may("admin"):
        prefix = session_label(key, "")
        found["requests"] = [
            one | {"session": one["session"].removeprefix(prefix)}
            for one in found["requests"]
            if one["tenant"] == key.name
        ]
    if not key.may("observe"):
        found |= {"pool": None, "scheduler": None, "throughput": None, "shadows": []}
        if blocks:
            raise needs(key, "observe")
    return found | {"blocks": service_of(request).block_map()} if blocks else found


@router.get("/usage", responses=documented(503))
async def usage(request: Request) -> dict[str, Any]:
    """Tokens and block-seconds by session since the engine started; a key sees its own."""
    service, key = service_of(request), key_of(request)
    service.ready()
    report: UsageReport = await service.supervisor.ask(lambda ticket: GetUsage(ticket=ticket))
    found: dict[str, Any] = msgspec.to_builtins(report)
    del found["type"], found["ticket"]
    if not key.may("admin"):
        prefix = session_label(key, "")
        found["tenants"] = [one for one in found["tenants"] if one["name"] == key.name]
        found["sessions"] = [
            one | {"name": one["name"].removeprefix(prefix)} for one in found["sessions"] if one["tenant"] == key.name
        ]
        del found["unowned_block_seconds"]
    return found
