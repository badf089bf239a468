"""What the front process tells the engine to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from engine.protocol.codec import Message, ProtocolError, decoder, encode
from engine.protocol.sampling import Answers, BeamParams, SamplingParams, TokenCount, TokenId

SessionAction = Literal["fork", "pin", "unpin", "close", "save", "restore"]

Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""The lower number is served first (vLLM's field), and requests of one priority in the order they came."""

Ticket = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Returned in the answer, so that answers find their question."""

Name = Annotated[str, msgspec.Meta(max_length=512)]
"""Of a request or a session, as the front calls it; a client's own names are shorter (pagechat/protocol.py)."""

AnswerIndex = Annotated[int, msgspec.Meta(ge=0, le=15)]

BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

Prompt = Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=2**24)]


class AddRequest(Message, frozen=True):
    request_id: Name
    session: Name
    """The chat this request belongs to; the label of its blocks in telemetry."""
    prompt: Prompt
    sampling: SamplingParams
    n: Answers = 1
    """Answers. They share the prompt's blocks; answer i is sampled with seed + i."""
    beam: BeamParams | None = None
    """Beam search instead of sampling; the n best beams come back, whole, at the end."""
    keep: bool = False
    """Keep the blocks for the session's next turn when the request ends (resident)."""
    salt: bytes = b""
    """Requests share cached blocks only with requests of the same salt."""
    tenant: str = ""
    """Who pays: the label of the API key it came with."""
    priority: Priority = 0


class SetPriority(Message, frozen=True):
    """A request that waits or runs gets another priority; nothing happens when there is none. Clients send the front
    the same, with the name they gave the request."""

    request_id: Name
    priority: Priority


class AbortRequest(Message, frozen=True):
    request_id: Name
    index: AnswerIndex | None = None
    """Only this one of the request's answers ends, and the others go on; None: all of them. A beam search has no
    answers before its end: nothing happens to it."""


class TakeSnapshot(Message, frozen=True):
    ticket: Ticket


class SessionCommand(Message, frozen=True):
    """Something to do with a session between its turns; answered by `SessionReply`."""

    ticket: Ticket
    action: SessionAction
    session: Name
    target: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """fork: the new session. save, restore: the file."""
    tokens: TokenCount | None = None
    """fork: share only the blocks of so many first tokens; None: of all there are."""
    salt: bytes = b""
    """save, restore: the salt its requests carry."""


class ListSessions(Message, frozen=True):
    """Which sessions the engine knows; clients ask the front the same."""

    ticket: Ticket


class GetUsage(Message, frozen=True):
    """Who has used what; clients ask the front the same."""

    ticket: Ticket


class GetBlock(Message, frozen=True):
    """What is in a block; clients ask the front the same."""

    ticket: Ticket
    block: BlockId


class Ping(Message, frozen=True):
    ticket: Ticket


class Shutdown(Message, frozen=True):
    pass


Command = (
    AddRequest
    | SetPriority
    | AbortRequest
    | TakeSnapshot
    | SessionCommand
    | ListSessions
    | GetUsage
    | GetBlock
    | Ping
    | Shutdown
)
decode_command: Callable[[bytes], Command] = decoder(Command)
"""What the engine received from the front. Raises ProtocolError."""


def checked(request: AddRequest) -> AddRequest:
    """The same request, which is within all bounds; a struct made in Python need not be. Raises ProtocolError."""
    try:
        frame = encode(request)
    except (OverflowError, TypeError, ValueError) as error:  # a number beyond 64 bits, or no number at all
        raise ProtocolError(str(error)) from None
    command = decode_command(frame)
    assert isinstance(command, AddRequest)
    return command
