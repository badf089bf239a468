"""How much of the block pool one key may hold: with sessions that it has pinned, and with requests under way.

Pinned blocks are nobody else's until they are unpinned. So each key pins its share at most, and all together half of
the pool: what is left still serves everybody. Both are looked up in the engine when they matter, never guessed.
"""

from __future__ import annotations

from engine.protocol import ListSessions, SessionInfo, SessionList
from pagechat.daemon import sessions
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.keys import Key
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.http.service import Service
from pagechat.protocol import ManageSession, Rejected

MOST_PINNED = 0.5
"""Share of the pool that all sessions pinned over HTTP may hold."""


async def check_pin(service: Service, key: Key, label: str) -> None:
    """Whether this session may be pinned as it is. Raises ApiError."""
    found = await _sessions(service)
    this = next((one for one in found if one.session == label), None)
    if this is not None:
        _check_pinned(service, key, label, this.blocks, found)


async def check_growth(service: Service, key: Key, label: str, tokens: int) -> None:
    """Whether a turn with so many tokens may go on in this session, if it is pinned. Raises ApiError."""
    if label not in service.pinned:
        return
    engine, _ = service.ready()
    found = await _sessions(service)
    this = next((one for one in found if one.session == label and one.pinned), None)
    if this is not None:
        _check_pinned(service, key, label, max(this.blocks, -(-tokens // engine.pool.block_size)), found)


async def let_go_what_has_grown(service: Service, key: Key, label: str) -> None:
    """After a turn of a pinned session: it is pinned no longer where it has outgrown the key's share."""
    try:
        await check_growth(service, key, label, 0)
    except ApiError:
        service.pinned.discard(label)
        await sessions.answer(ManageSession(ticket=0, action="unpin", session=label), service.supervisor.ask)
    except RequestError:
        return  # the engine has gone, and its sessions with it


async def check_pool(service: Service, key: Key, tokens: int, answers: int) -> None:
    """Whether a request may come in beside the others of its key. Raises ApiError."""
    if key.pool_share >= 1:
        return
    engine, _ = service.ready()
    size, most = engine.pool.block_size, int(key.pool_share * engine.pool.num_blocks)
    asked = -(-tokens // size) + answers
    words = f"key {key.name!r} may hold {most:,} blocks at a time, and this request begins with {asked:,}"
    if asked > most:
        raise ApiError(400, words, code="key_pool")
    held = sum(one.blocks for one in await _sessions(service) if _is_of(one, key) and one.state == "running")
    if held + asked > most:
        raise ApiError(429, f"{words}; {held:,} are held by its other requests", code="key_pool")


def _check_pinned(service: Service, key: Key, label: str, blocks: int, found: list[SessionInfo]) -> None:
    engine, _ = service.ready()
    pool = engine.pool.num_blocks
    others = [one for one in found if one.pinned and one.session != label]
    of_key = sum(one.blocks for one in others if _is_of(one, key))
    most = int(key.pin_share * pool)
    if of_key + blocks > most:
        raise ApiError(
            403,
            f"key {key.name!r} may pin {most:,} of the pool's {pool:,} blocks; it has pinned {of_key:,}, and this "
            f"session takes {blocks:,}",
            code="pin_share",
        )
    of_all, most = sum(one.blocks for one in others), int(MOST_PINNED * pool)
    if of_all + blocks > most:
        raise ApiError(
            503,
            f"{of_all:,} of the pool's {pool:,} blocks are pinned, and this session takes {blocks:,}; {most:,} may be",
            code="pool_pinned",
        )


def _is_of(session: SessionInfo, key: Key) -> bool:
    return not key.name or session.session.startswith(f"{key.name}/")


async def _sessions(service: Service) -> list[SessionInfo]:
    reply = await sessions.answer(ListSessions(ticket=0), service.supervisor.ask)
    if isinstance(reply, Rejected):
        raise RequestError(reply.code, reply.message)
    assert isinstance(reply, SessionList)
    return reply.sessions
