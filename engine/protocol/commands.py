"""What the front process tells the engine to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from engine.protocol.codec import Message, decoder
from engine.protocol.sampling import BeamParams, SamplingParams

SessionAction = Literal["fork", "pin", "unpin", "close", "save", "restore"]

Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""The lower number is served first (vLLM's field), and requests of one priority in the order they came."""


class AddRequest(Message, frozen=True):
    request_id: str
    session: str
    """The chat this request belongs to; the label of its blocks in telemetry."""
    prompt: tuple[int, ...]
    sampling: SamplingParams
    n: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
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

    request_id: str
    priority: Priority


class AbortRequest(Message, frozen=True):
    request_id: str


class TakeSnapshot(Message, frozen=True):
    ticket: int
    """Returned in the `Snapshot`, so that answers find their question."""


class SessionCommand(Message, frozen=True):
    """Something to do with a session between its turns; answered by `SessionReply`."""

    ticket: int
    action: SessionAction
    session: str
    target: str = ""
    """fork: the new session. save, restore: the file."""
    tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """fork: share only the blocks of so many first tokens; None: of all there are."""
    salt: bytes = b""
    """save, restore: only a session whose requests carry this salt; empty: whichever theirs is."""


class ListSessions(Message, frozen=True):
    """Which sessions the engine knows; clients ask the front the same."""

    ticket: int


class GetUsage(Message, frozen=True):
    """Who has used what; clients ask the front the same."""

    ticket: int


class GetBlock(Message, frozen=True):
    """What is in a block; clients ask the front the same."""

    ticket: int
    block: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Ping(Message, frozen=True):
    ticket: int


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
