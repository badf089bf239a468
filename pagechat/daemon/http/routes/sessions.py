"""/v1/sessions: chats that keep their blocks between turns. A key sees its own only."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request

from engine.protocol import ListSessions, SessionAction, SessionList, SessionReply
from pagechat.daemon import sessions
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.bodies import BodyRoute
from pagechat.daemon.http.call import key_of, service_of, session_label
from pagechat.daemon.http.errors import documented
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.http.schemas.sessions import ForkBody, PinBody
from pagechat.protocol import ManageSession, Rejected

router = APIRouter(route_class=BodyRoute, prefix="/v1/sessions", responses=documented(400, 500, 503))

Name = Annotated[str, Path(min_length=1, max_length=128)]


@router.get("")
async def list_sessions(request: Request) -> dict[str, Any]:
    """Least recently used first."""
    found = await _ask(request, ListSessions(ticket=0))
    assert isinstance(found, SessionList)
    prefix = session_label(key_of(request), "")
    mine = [session for session in found.sessions if session.session.startswith(prefix)]
    data = [msgspec.to_builtins(one) | {"session": one.session.removeprefix(prefix)} for one in mine]
    return {"object": "list", "data": data}


@router.post("/{name}/fork", responses=documented(404, 413))
async def fork(name: Name, body: ForkBody, request: Request) -> dict[str, Any]:
    """A second session that shares every block of the first; the first to write to one copies it."""
    return await _manage(request, "fork", name, body.target)


@router.post("/{name}/pin", responses=documented(404, 413))
async def pin(name: Name, body: PinBody, request: Request) -> dict[str, Any]:
    """Keep its blocks whatever happens, or no longer."""
    return await _manage(request, "pin" if body.pinned else "unpin", name)


@router.delete("/{name}", responses=documented(404))
async def delete(name: Name, request: Request) -> dict[str, Any]:
    """Give its blocks back; the full ones stay cached until they are evicted."""
    return await _manage(request, "close", name)


async def _manage(request: Request, action: SessionAction, name: str, target: str = "") -> dict[str, Any]:
    key = key_of(request)
    question = ManageSession(
        ticket=0,
        action=action,
        session=session_label(key, name),
        target=session_label(key, target) if target else "",
    )
    reply = await _ask(request, question)
    assert isinstance(reply, SessionReply)
    if not reply.ok:
        raise ApiError(404, f"there is no session {name!r} in the cache", param="name", code="session_not_found")
    return {"object": "session", "session": target or name, "tokens": reply.tokens}


async def _ask(request: Request, question: sessions.SessionQuestion) -> Any:
    service = service_of(request)
    service.ready()
    reply = await sessions.answer(question, service.supervisor.ask)
    if isinstance(reply, Rejected):
        raise RequestError(reply.code, reply.message)
    return reply
