"""Every message on every socket, and how it becomes bytes.

Two conversations use it. *Engine side*: the front process sends commands to the engine process
and receives replies; the engine also publishes telemetry. *Client side*: the app, scripts and
`pagechat-daemon ask` talk to the front. Frames are MessagePack maps with a `type` field, decoded
straight into the frozen structs below: an unknown type, a missing field or a wrong kind of value
is a `ProtocolError`, never a half-read object. Nothing here knows a model, a tokenizer or a screen.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

VERSION = 1
"""Raised with any change a peer of the previous version would misread."""

MAX_CLIENT_FRAME = 64 * 2**20
"""Bytes of the largest frame a client may send; the front drops the connection of one that sends more."""

NO_EVENT = 2**62
"""`first_event` of the empty report the front publishes when a new engine takes over. No engine counts so
far, so every mirror sees a gap and asks for a snapshot: a new engine's numbers start again at 0."""

FinishReason = Literal["stop", "length", "abort", "error"]
"""stop: EOS, a stop token or a stop string. length: max_tokens or the context is full.
abort: the client asked. error: refused or failed; the message says why."""

ErrorCode = Literal[
    "bad_request",
    "too_long",
    "engine_died",
    "engine_failed",
    "shutting_down",
    "version_mismatch",
    "internal",
]

SessionAction = Literal["fork", "pin", "unpin", "close", "save", "restore"]

EventKind = Literal["allocate", "share", "hit", "release", "copy", "cache", "evict", "preempt", "swap_out", "swap_in"]


class ProtocolError(ValueError):
    """A frame that is not one of the messages expected on its socket."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all messages: immutable, tagged with its class name."""


# ---------------------------------------------------------------------------------------------
# front -> engine


TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "gbnf"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer's text must be, in a notation of llguidance. The answer ends where the grammar does."""

    kind: GrammarKind
    """json_object: any JSON object; `text` is empty."""
    text: Annotated[str, msgspec.Meta(max_length=2**17)] = ""
    """json_schema: the schema as JSON. regex: in the syntax of Rust's regex crate, for the whole answer.
    choice: a JSON array of strings. lark, gbnf: the grammar."""


class SamplingRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may ask of the choice of tokens, and what the engine is told in the same words."""

    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Sample among tokens at least min_p times as likely as the most likely one."""
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    """Taken off the logit of each token generated before (OpenAI)."""
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    """Taken off a token's logit as many times as it was generated before (OpenAI)."""
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    """Divides the positive and multiplies the negative logit of each token of prompt and answer so far (CTRL, as in
    transformers)."""
    logit_bias: Annotated[
        tuple[tuple[TokenId, Annotated[float, msgspec.Meta(ge=-100, le=100)]], ...], msgspec.Meta(max_length=1024)
    ] = ()
    """(token id, what is added to its logit); each token once."""
    allowed_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=4096)] = ()
    """Only these can be sampled, stop tokens included; empty: all."""
    bad_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=4096)] = ()
    """These are never sampled."""
    grammar: Grammar | None = None
    """The answer follows it. A request waits, without holding up others, until its grammar is compiled."""
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """No stop token is sampled before so many tokens; only the end of a grammar comes earlier."""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    """Report the log probability of each generated token, and this many of the most likely ones there. They are those
    of the model itself (log-softmax of its logits, before anything above), as OpenAI and vLLM report them."""
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    """The same for each token of the prompt but the first. The whole prompt is computed: nothing of it is taken from
    the prefix cache."""


class SamplingParams(SamplingRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token of a sequence is chosen, and when the sequence ends.

    The model's logits pass these, in this order (vLLM's): repetition, frequency and presence penalty, logit_bias,
    which tokens are allowed (allowed_token_ids, bad_token_ids, min_tokens, grammar), temperature, min_p, top_k, top_p.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    """Most tokens to generate."""
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """0 takes the most likely token (greedy)."""
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Sample among the k most likely tokens; 0 takes all."""
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Sample among the most likely tokens whose probabilities add up to top_p."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """With the position it names the random numbers, so a result never depends on its neighbours."""
    stop_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=256)] = ()
    """Generation ends when one of these is sampled; the token itself is reported."""


class BeamParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beam search as transformers defines it."""

    width: Annotated[int, msgspec.Meta(ge=2, le=16)]
    length_penalty: Annotated[float, msgspec.Meta(ge=-8, le=8)] = 1.0
    """A finished beam's score is its summed log probability over its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """True: end with `width` finished beams. False: when the best running one, at its present length, is
    worse than all finished. "never": when no longer answer could be better."""


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
    """save, restore: the salt its requests carry."""


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


# ---------------------------------------------------------------------------------------------
# engine -> front


class LoadProgress(Message, frozen=True):
    """What the engine does before it is ready. `total` 0: unknown length."""

    stage: Literal["starting", "fetching", "converting", "loading", "warming"]
    detail: str
    done: int = 0
    total: int = 0


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str
    """Directory with config.json, tokenizer.json and model.safetensors."""
    architecture: str
    parameters: int
    vocab_size: int
    max_context: int
    """Tokens a sequence may hold, prompt and answer together."""
    dtype: str
    """Of what is computed."""
    device: str
    weights_dtype: str = ""
    """Of the weights, or of most of them: bits are fewer than in `dtype` with a CPU's C++ kernels."""
    kv_dtype: str = ""
    kernels: str = ""
    """C++, torch or Triton."""

    @property
    def numbers(self) -> str:
        """What is computed with, in a few words."""
        parts = [f"{self.weights_dtype} weights"] if self.weights_dtype not in ("", self.dtype) else []
        parts += [f"{self.kv_dtype} KV"] if self.kv_dtype not in ("", self.dtype) else []
        parts += ["C++"] if self.kernels == "C++" else []
        return ", ".join([self.dtype, *parts])


class PoolInfo(msgspec.Struct, frozen=True, kw_only=True):
    num_blocks: int
    """Blocks that can hold tokens, numbered 1..num_blocks; block 0 is the null block and never counted."""
    block_size: int
    """Slots (tokens) in a block."""
    bytes_per_block: int
    """K and V of all layers."""


class EngineReady(Message, frozen=True):
    version: int
    pid: int
    model: ModelInfo
    pool: PoolInfo
    load_s: float


class CacheMiss(msgspec.Struct, frozen=True, kw_only=True):
    """Why a session's next turn could not reuse all of the turn before."""

    reason: Literal["diverged", "evicted"]
    """diverged: the prompt differs from what is in the cache. evicted: it agrees, but a block was taken."""
    position: int
    """diverged: the first token that differs. evicted: the first token of the block that is gone."""
    expected: int | None = None
    """diverged: the token id there in the turn before; None where that turn ended."""
    found: int | None = None
    """diverged: the token id there now."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How likely the model itself found one token of a sequence, and which ones it found most likely there."""

    token: int
    logprob: float
    rank: int
    """1: no token was more likely."""
    top: tuple[tuple[int, float], ...]
    """(token id, log probability), the most likely first; as many as were asked for. `token` may be among them."""


class TokenOutput(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one request. Without tokens, reason or message it only carries `prompt_logprobs`."""

    request_id: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was there already when the request was first admitted."""
    message: str = ""
    """Why, for `finish_reason` error."""
    code: ErrorCode | None = None
    index: int = 0
    """Which of the request's n answers."""
    score: float | None = None
    """Of a finished beam."""
    miss: CacheMiss | None = None
    """With the first tokens of a request, when its session has been here before."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `tokens`, when the request asked for `logprobs`."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the next tokens of the prompt, from its second token on, when the request asked for them. They come once
    (with index 0), in pieces as the prompt is computed, all before the first generated token."""
    prefill_s: float | None = None
    """With the first token of an answer: seconds since the request was first given blocks."""
    param: str | None = None
    """For `finish_reason` error: the field that is wrong, where one is, by its name in `AddRequest` or
    `SamplingParams`."""


class StepOutputs(Message, frozen=True):
    step: int
    """Number of the report of the same step; -1 for what happened between steps."""
    outputs: list[TokenOutput]


class SessionReply(Message, frozen=True):
    ticket: int
    ok: bool
    message: str
    """What was done, or why not."""
    tokens: int = 0
    """fork: tokens shared; save, restore: tokens whose KV was written or read."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    state: Literal["running", "waiting", "resident", "remembered"]
    """remembered: its blocks were reclaimed; what is left of it is in the prefix cache."""
    tokens: int
    blocks: int
    pinned: bool
    priority: int = 0
    """Of its request that runs or waits."""


class SessionList(Message, frozen=True):
    ticket: int
    sessions: list[SessionInfo]


class OwnerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one session, or all sessions of one tenant, have used since the engine started."""

    name: str
    """Of the session, or the tenant. "(earlier)": sessions that are no longer remembered one by one."""
    tenant: str
    prompt_tokens_computed: int
    """Those computed again after a preemption included."""
    prompt_tokens_cached: int
    generated_tokens: int
    block_seconds: float
    """A shared block's time is split equally among its owners at each moment."""


class UsageReport(Message, frozen=True):
    """Block-seconds of all sessions and `unowned_block_seconds` add up to `num_blocks` x `seconds`."""

    ticket: int
    seconds: float
    """Since the engine started."""
    num_blocks: int
    sessions: list[OwnerUsage]
    tenants: list[OwnerUsage]
    unowned_block_seconds: float
    """Of free and cached blocks."""


class BlockContent(Message, frozen=True):
    ticket: int
    block: int
    name: str | None
    """SHA-256, in hexadecimal, over all tokens up to the block's end, by which the prefix cache finds it; None for a
    block that cannot be found: one that is not full, or whose content is in another block already."""


class Pong(Message, frozen=True):
    ticket: int


class EngineFailed(Message, frozen=True):
    """Sent once, last, when the engine ends because of an error."""

    message: str


# ---------------------------------------------------------------------------------------------
# telemetry: engine -> front -> every subscriber


class PoolEvent(msgspec.Struct, frozen=True, array_like=True):
    """One change of the block pool. The event's number is `StepReport.first_event` + its place.

    allocate  block enters `seq`'s table at `index`, empty, reference count 1
    share     one more owner: `block` enters `seq`'s table at `index`
    hit       a cached block gets its first owner again: enters `seq`'s table at `index`
    copy      copy-on-write: `block`, a copy of `source`, replaces it in `seq`'s table at `index`;
              `source` lost that reference
    release   `seq` gives up its last table entry, which was `block`
    cache     `block` became content-addressable
    evict     `block`, cached and without owner, lost its content
    preempt, swap_out, swap_in   the sequence; block is -1
    """

    kind: EventKind
    block: int
    seq: int = -1
    session: str = ""
    index: int = -1
    source: int = -1


PreemptionReason = Literal["cheaper", "not measured", "no host memory", "shares its future"]


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence that gave its blocks up for older ones, how, and why so."""

    seq: int
    session: str
    tokens: int
    """Whose KV was in its blocks."""
    blocks: int
    method: Literal["recompute", "swap"]
    recompute_s: float | None
    """What computing its tokens again is expected to take; None before the engine has measured that."""
    swap_s: float | None
    """What moving its blocks out and back is expected to take; None without host memory to swap to."""
    priority: int = 0
    reason: PreemptionReason
    """cheaper: the method is, by those figures. shares its future: beams, and a prompt whose answers have not
    forked yet, are always recomputed."""


class ShadowRegion(msgspec.Struct, frozen=True, array_like=True):
    """The slots that a policy would keep for one answer: `first .. first + length - 1`."""

    first: int
    length: int
    tokens: int
    """Slots at its beginning that hold a token."""
    longest: int
    """Slots at its beginning that the answer may fill; it never fills those behind."""
    session: str


class ShadowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy would hold of the live requests on as many slots; see engine/blocks/shadow.py."""

    policy: str
    requests_held: int
    slots_used: int
    """Slots that hold a token."""
    reserved_waste: int
    """Slots that are kept for tokens their request may still bring."""
    internal_waste: int
    """Slots that their request can never fill."""
    external_waste: int
    """Free slots, while the next request fits in no hole."""
    regions: list[ShadowRegion] = []
    """In the reports, of a contiguous policy: what it keeps for whom, of the oldest 512 answers it holds."""


class StepReport(Message, frozen=True):
    """One step of the engine (or, between steps, what aborts changed), and every pool event since
    the previous report."""

    step: int
    """Number of the report: one more than the report before."""
    time: float
    """Unix time, seconds."""
    duration_s: float
    running: int
    waiting: int
    preemptions: int
    """Since the engine started."""
    prompt_tokens: int
    """Prompt tokens computed in this step."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache by requests admitted in this step."""
    generated_tokens: int
    first_event: int
    events: list[PoolEvent]
    lengths: list[tuple[int, int]]
    """(sequence, tokens in its blocks) of each sequence that changed."""
    preempted: list[Preemption] = []
    """In this step."""
    shadows: list[ShadowStatus] = []
    """Every now and then (about twice a second), how other policies would fare; empty otherwise."""


class SequenceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    session: str
    blocks: list[int]
    """Block table: physical block of each logical block."""
    length: int
    """Tokens in those blocks."""


class Snapshot(Message, frozen=True):
    """The pool as it is just after report number `step`, and just before event `next_event`."""

    ticket: int
    next_event: int
    step: int
    num_blocks: int
    block_size: int
    sequences: list[SequenceSnapshot]
    cached: list[int]
    """Blocks with content and no owner, next victim first."""
    addressable: list[int]
    """Owned blocks that are content-addressable: they become cached when their last owner goes."""
    running: int
    waiting: int
    preemptions: int


# ---------------------------------------------------------------------------------------------
# client -> front


class Hello(Message, frozen=True):
    version: int
    client: str
    """What speaks, for the log: "pagechat", "ask", a script's name."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatOptions(SamplingRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None takes the model's own default (generation_config.json), or the rest of the context."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]], msgspec.Meta(max_length=16)] = []
    stop_token_ids: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=64)] = []
    """Tokens that end the answer, beside the model's own."""
    ignore_eos: bool = False
    """The model's own end-of-answer tokens do not end it."""


class Chat(Message, frozen=True):
    request_id: str
    """Chosen by the client, unique among its requests in flight; the engine sees another."""
    session: str
    messages: list[ChatMessage]
    options: ChatOptions = ChatOptions()
    keep: bool = False
    """The session goes on: its next turn should find this one's blocks in place."""
    n: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    """Answers. Each gets its own `Delta`s and its own `Finished`."""
    beam: BeamParams | None = None
    """Beam search instead of sampling; its n best answers come whole, at the end."""
    continue_final: bool = False
    """The last message is an answer to go on with, not to reply to."""
    priority: Priority = 0


class Cancel(Message, frozen=True):
    request_id: str


class GetStatus(Message, frozen=True):
    ticket: int


class GetSnapshot(Message, frozen=True):
    ticket: int


class ManageSession(Message, frozen=True):
    """Something to do with a session between its turns; answered by `SessionReply`. Files are named by the front."""

    ticket: int
    action: SessionAction
    session: str
    target: str = ""
    """fork: the new session."""
    tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """fork: share only the blocks of so many first tokens; None: of all there are."""


class GetPieces(Message, frozen=True):
    """How the model reads these messages: answered by `Pieces`."""

    ticket: int
    messages: list[ChatMessage]
    continue_final: bool = False


class StopDaemon(Message, frozen=True):
    pass


# ---------------------------------------------------------------------------------------------
# front -> client


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


class Delta(Message, frozen=True):
    request_id: str
    text: str
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


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds since the front received the request."""

    ttft_s: float | None
    total_s: float


class Finished(Message, frozen=True):
    request_id: str
    text: str
    """The whole answer: the concatenation of all deltas."""
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


class Failed(Message, frozen=True):
    """The request ended without an answer of its own; deltas already sent stay valid."""

    request_id: str
    code: ErrorCode
    message: str
    param: str | None = None
    """The field of the request that is wrong, where one is."""


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    num_blocks: int
    block_size: int
    free: int
    """Blocks without content."""
    cached: int
    """Blocks with content and no owner."""
    active: int
    """Blocks with one owner."""
    shared: int
    """Blocks with two or more owners."""
    slots_used: int
    """Slots of active and shared blocks that hold a token, a shared block's counted once."""
    internal_waste: int
    """Slots of active and shared blocks that hold none."""
    largest_free_run: int
    """Most consecutive blocks without owner."""
    saved: int
    """Blocks that sharing saves: table entries less active and shared blocks."""


class SchedulerStatus(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    preemptions: int


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
    pid: int
    daemon_version: str
    uptime_s: float
    model: ModelInfo | None
    device: str | None
    load: LoadProgress | None
    """What the engine is doing, while it is not ready."""
    error: str | None
    """Why the engine failed, when it did."""
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


class Pieces(Message, frozen=True):
    """The text of each token of a prompt, special ones by their names."""

    ticket: int
    pieces: list[str]


class Stopping(Message, frozen=True):
    pass


class Rejected(Message, frozen=True):
    """The front could not accept the client's frame at all, or cannot answer the question with this ticket."""

    code: ErrorCode
    message: str
    ticket: int | None = None


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
Reply = (
    LoadProgress
    | EngineReady
    | StepOutputs
    | Snapshot
    | SessionReply
    | SessionList
    | UsageReport
    | BlockContent
    | Pong
    | EngineFailed
)
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

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "command": msgspec.msgpack.Decoder(Command),
    "reply": msgspec.msgpack.Decoder(Reply),
    "telemetry": msgspec.msgpack.Decoder(StepReport),
    "client": msgspec.msgpack.Decoder(ClientMessage),
    "front": msgspec.msgpack.Decoder(FrontMessage),
}

T = TypeVar("T")


def encode(message: Message) -> bytes:
    """The message as one MessagePack frame."""
    return _encoder.encode(message)


def _decode(kind: str, frame: bytes) -> Any:
    try:
        return _decoders[kind].decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None


def decode_command(frame: bytes) -> Command:
    """What the engine received from the front."""
    return _decode("command", frame)


def decode_reply(frame: bytes) -> Reply:
    """What the front received from the engine."""
    return _decode("reply", frame)


def decode_report(frame: bytes) -> StepReport:
    """A telemetry frame."""
    return _decode("telemetry", frame)


def decode_client_message(frame: bytes) -> ClientMessage:
    """What the front received from a client."""
    return _decode("client", frame)


def decode_front_message(frame: bytes) -> FrontMessage:
    """What a client received from the front."""
    return _decode("front", frame)
