"""What clients and the front process say to each other.

The app, scripts and `pagechat-daemon ask` send the messages of the first half, the front those of the second.
Frames are those of the engine's protocol, and messages that pass through the front unchanged are defined there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from engine.protocol.codec import Message, decoder
from engine.protocol.commands import (
    GetBlock,
    GetUsage,
    ListSessions,
    Priority,
    SessionAction,
    SetPriority,
    Ticket,
)
from engine.protocol.replies import (
    BlockContent,
    ErrorCode,
    FinishReason,
    LoadProgress,
    ModelInfo,
    SessionList,
    SessionReply,
    TokenLogprobs,
    UsageReport,
)
from engine.protocol.sampling import (
    Answers,
    BeamParams,
    SamplingRules,
    Seed,
    Temperature,
    TokenCount,
    TokenId,
    TopK,
    TopP,
)
from engine.protocol.telemetry import PoolStatus, ShadowStatus, Snapshot

MAX_CLIENT_FRAME = 20 * 2**20
"""Bytes of the largest frame a client may send; the front drops the connection of one that sends more. A request's text
(4 Mi characters) takes 16 MiB of it at most."""

MAX_NAME = 256
"""Characters of the name of a request or a session."""

MAX_MESSAGES = 4096

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], msgspec.Meta(max_length=16)]
StopTokens = Annotated[list[TokenId], msgspec.Meta(max_length=64)]


class Hello(Message, frozen=True):
    version: int
    client: str
    """What speaks, for the log: "pagechat", "ask", a script's name."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str
    reasoning: str = ""
    """What the assistant thought before; the model's template decides whether it is read again."""


class ChatOptions(SamplingRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None takes the model's own default (generation_config.json), or the rest of the context."""

    max_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: StopStrings = []
    stop_token_ids: StopTokens = []
    """Tokens that end the answer, beside the model's own."""
    ignore_eos: bool = False
    """The model's own end-of-answer tokens do not end it."""


class Chat(Message, frozen=True):
    request_id: Name
    """Chosen by the client, unique among its requests in flight; the engine sees another."""
    session: Name
    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=MAX_MESSAGES)]
    options: ChatOptions = ChatOptions()
    keep: bool = False
    """The session goes on: its next turn should find this one's blocks in place."""
    n: Answers = 1
    """Answers. Each gets its own `Delta`s and its own `Finished`."""
    beam: BeamParams | None = None
    """Beam search instead of sampling; its n best answers come whole, at the end."""
    continue_final: bool = False
    """The last message is an answer to go on with, not to reply to."""
    priority: Priority = 0


class Cancel(Message, frozen=True):
    request_id: Name


class GetStatus(Message, frozen=True):
    ticket: Ticket


class GetSnapshot(Message, frozen=True):
    ticket: Ticket


class ManageSession(Message, frozen=True):
    """Something to do with a session between its turns; answered by `SessionReply`. Files are named by the front."""

    ticket: Ticket
    action: SessionAction
    session: Name
    target: Name = ""
    """fork: the new session."""
    tokens: TokenCount | None = None
    """fork: share only the blocks of so many first tokens; None: of all there are."""


class GetPieces(Message, frozen=True):
    """How the model reads these messages: answered by `Pieces`."""

    ticket: Ticket
    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=MAX_MESSAGES)]
    continue_final: bool = False


class StopDaemon(Message, frozen=True):
    pass


class Welcome(Message, frozen=True):
    version: int
    daemon_version: str
    pid: int
    telemetry: str
    """ZeroMQ endpoint that publishes `StepReport` frames."""
    telemetry_port: int | None = None
    """The same for clients that came over TCP."""


class Accepted(Message, frozen=True):
    request_id: str
    prompt_tokens: int


class CallPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, or more of one that has begun."""

    index: int
    """Which of the answer's calls."""
    arguments: str
    """JSON, or the next piece of it."""
    id: str = ""
    name: str = ""
    """Of the first piece; the others have neither id nor name."""


class Delta(Message, frozen=True):
    request_id: str
    text: str
    """Of the answer itself: no reasoning, no call."""
    tokens: int
    """Tokens generated so far, for this answer."""
    index: int = 0
    """Which of the request's n answers."""
    token_ids: tuple[int, ...] = ()
    """The tokens behind the text, for requests that ask for them."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens behind the text (a stop token has none), for requests that ask for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """As in `TokenOutput`; all of them come before the first text."""
    reasoning: str = ""
    """What the model thought, before its answer."""
    calls: tuple[CallPiece, ...] = ()
    """The tools that it calls, for requests that offered some."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    """Of the completion."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the front received the request."""

    ttft_s: float | None
    total_s: float


class Finished(Message, frozen=True):
    request_id: str
    text: str
    """The whole answer: the concatenation of all deltas' texts."""
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    index: int = 0
    """Which of the request's n answers; the request is complete when each of them has finished."""
    score: float | None = None
    """Of a beam: its summed log probability over its length to the power of the length penalty."""
    miss: str | None = None
    """Why the session's turn could not reuse all of the turn before, in words; None when it could."""
    miss_position: int | None = None
    """The first token of the prompt that could not be reused because of that."""
    reasoning: str = ""
    """All of it."""
    calls: tuple[CallPiece, ...] = ()
    """Each whole."""


class Failed(Message, frozen=True):
    """The request ended without an answer of its own; deltas already sent stay valid."""

    request_id: str
    code: ErrorCode
    message: str
    param: str | None = None
    """The field of the request that is wrong, where one is."""


class SchedulerStatus(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    preemptions: int
    compilations: int = 0
    """Kernels compiled and CUDA graphs captured since the engine was ready; see `StepReport`."""


class ThroughputStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Over the last ten seconds."""

    prompt_tokens_per_s: float
    generated_tokens_per_s: float


class RequestStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has not ended."""

    session: str
    tenant: str
    """The label of the API key it came with."""
    state: Literal["waiting", "running"]
    """By the last report: running, it has blocks; waiting, it has none, not yet or because others took them."""
    priority: int
    """The one it came with, or was given since."""
    prompt_tokens: int
    """0 until it has been tokenized."""
    generated_tokens: int
    """Of all its answers."""
    age_s: float


class Status(Message, frozen=True):
    ticket: int
    state: Literal["loading", "ready", "restarting", "failed", "stopping"]
    """restarting: the engine ended, and others are started until one is ready."""
    pid: int
    daemon_version: str
    uptime_s: float
    model: ModelInfo | None
    device: str | None
    load: LoadProgress | None
    """What the engine is doing, while it is not ready."""
    error: str | None
    """Why the engine failed, when it did, or why the last one ended."""
    engine_pid: int | None
    pool: PoolStatus | None
    scheduler: SchedulerStatus | None
    throughput: ThroughputStatus
    requests: list[RequestStatus] = []
    """In the order they are served: by priority, and as they came."""
    shadows: list[ShadowStatus] = []
    """How each policy would fare with the live requests; the last that the engine told."""
    http: str | None = None
    """Where the OpenAI-compatible door is; None when there is none."""
    http_problem: str | None = None
    """Why there is none, although it was wanted."""
    state_s: float = 0.0
    """Seconds in this state."""
    next_try_s: float | None = None
    """Seconds until another engine is started; None when none is waited for."""


class Pieces(Message, frozen=True):
    """The text of each token of a prompt, special ones by their names. Together they are the prompt's text: a
    character of several tokens is the last one's, and those before it have none."""

    ticket: int
    pieces: list[str]


class Stopping(Message, frozen=True):
    pass


class Rejected(Message, frozen=True):
    """The front could not accept the client's frame at all, or cannot answer the question with this ticket."""

    code: ErrorCode
    message: str
    ticket: int | None = None


ClientMessage = (
    Hello
    | Chat
    | SetPriority
    | Cancel
    | GetStatus
    | GetSnapshot
    | ManageSession
    | ListSessions
    | GetUsage
    | GetBlock
    | GetPieces
    | StopDaemon
)
FrontMessage = (
    Welcome
    | Accepted
    | Delta
    | Finished
    | Failed
    | Status
    | Snapshot
    | SessionReply
    | SessionList
    | UsageReport
    | BlockContent
    | Pieces
    | Stopping
    | Rejected
)
decode_client_message: Callable[[bytes], ClientMessage] = decoder(ClientMessage)
"""What the front received from a client. Raises ProtocolError."""
decode_front_message: Callable[[bytes], FrontMessage] = decoder(FrontMessage)
"""What a client received from the front. Raises ProtocolError."""
