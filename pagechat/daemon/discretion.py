"""What is said of the daemon's own faults to those who do not sit at its machine.

An exception's text, a file's path and a process's number are for the log, and for this user's own programs; a client
over HTTP or TCP is told in fixed words what happened, with an id under which the log says the rest.
"""

from __future__ import annotations

import logging
import secrets

import msgspec

from engine.protocol import ErrorCode, Message
from pagechat.daemon.errors import RequestError
from pagechat.protocol import Failed, Rejected, Status, Welcome

log = logging.getLogger(__name__)

_WORDS: dict[ErrorCode, str] = {
    "engine_died": "the engine ended before this was done; another one is started",
    "engine_failed": "the engine failed, and no other one is started",
    "internal": "the daemon failed on this request",
}


def discreet(error: RequestError) -> RequestError:
    """The error as anybody may read it. What it left out is logged."""
    words = _WORDS.get(error.code)
    return error if words is None else RequestError(error.code, _told(words, error.message), error.param)


def discreet_message(message: Message) -> Message:
    """A message as a client on another machine may read it."""
    match message:
        case Failed() | Rejected() if message.code in _WORDS:
            return msgspec.structs.replace(message, message=_told(_WORDS[message.code], message.message))
        case Status():
            return discreet_status(message)
        case Welcome():
            return msgspec.structs.replace(message, pid=0)
    return message


def discreet_status(status: Status) -> Status:
    """Without process numbers, paths and the words of exceptions."""
    model = status.model and msgspec.structs.replace(status.model, path="")
    load = status.load and msgspec.structs.replace(status.load, detail="")
    error = status.error and "the engine failed; the daemon's log says how"
    return msgspec.structs.replace(status, pid=0, engine_pid=None, model=model, load=load, error=error)


def _told(words: str, inside: str) -> str:
    name = secrets.token_hex(4)
    log.error("failure %s: %s", name, inside)
    return f"{words} (the daemon's log has more under {name})"
