"""What clients ask of the engine between requests: its sessions, a block, and who has used what.

Clients name sessions, never files: where a session is saved is decided here. Knows no socket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.protocol import Command, GetBlock, GetUsage, ListSessions, Message, SessionCommand
from pagechat.daemon.errors import RequestError
from pagechat.protocol import MAX_NAME, ManageSession, Rejected
from pagechat.store import data_dir

SessionQuestion = ManageSession | ListSessions | GetUsage | GetBlock
Ask = Callable[[Callable[[int], Command]], Awaitable[Any]]
"""Supervisor.ask: a command made with a ticket, and the engine's reply to it."""


async def answer(question: SessionQuestion, ask: Ask) -> Message:
    """The engine's reply with the client's ticket, or `Rejected` when there is none."""
    try:
        if isinstance(question, ManageSession):
            reply = await ask(_command(question))
        else:
            reply = await ask(lambda ticket: msgspec.structs.replace(question, ticket=ticket))
    except RequestError as error:
        return Rejected(code=error.code, message=error.message, ticket=question.ticket)
    replied: Message = msgspec.structs.replace(reply, ticket=question.ticket)
    return replied


def _command(question: ManageSession) -> Callable[[int], Command]:
    """Raises RequestError for names that name nothing."""
    action, session, target, tokens = question.action, question.session, question.target, question.tokens
    if not session or max(len(session), len(target)) > MAX_NAME:
        raise RequestError("bad_request", f"a session's name has 1 to {MAX_NAME} characters")
    if (action == "fork") != bool(target):
        raise RequestError("bad_request", "fork, and nothing else, needs the name of the new session")
    if tokens is not None and action != "fork":
        raise RequestError("bad_request", f"only a fork takes a number of tokens, not {action}")
    if target == session:
        raise RequestError("bad_request", "the new session needs another name")
    if action in ("save", "restore"):
        try:
            target = str(saved_session(session))
        except OSError as error:
            raise RequestError("internal", f"no folder for saved sessions: {error}") from None
    return lambda ticket: SessionCommand(ticket=ticket, action=action, session=session, target=target, tokens=tokens)


def saved_session(name: str) -> Path:
    """The file of a saved session, in a folder that only this user can read. Raises OSError."""
    folder = data_dir().absolute() / "kv"
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)  # one that was there already
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()}.safetensors"
