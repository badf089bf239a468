"""What the engine answers to the front process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from engine.protocol.codec import Message, ProtocolError, decoder
from engine.protocol.telemetry import Snapshot

FinishReason = Literal["stop", "length", "abort", "error"]
"""stop: EOS, a stop token or a stop string. length: max_tokens or the context is full.
abort: the client asked. error: refused or failed; the message says why."""

ErrorCode = Literal[
    "bad_request",
    "too_long",
    "engine_died",
    "engine_failed",
    "shutting_down",
    "busy",
    "version_mismatch",
    "overloaded",
    "internal",
]


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


def refusal(frame: bytes, error: ProtocolError) -> StepOutputs:
    """What the engine says to a command that is none: its request fails, where it names one, and nothing else."""
    try:
        found: Any = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError):
        found = None
    name = found.get("request_id") if isinstance(found, dict) else None
    outputs = []
    if isinstance(name, str) and found.get("type") == "AddRequest":
        outputs.append(TokenOutput(name, (), "error", message=str(error), code="bad_request", param=error.field))
    return StepOutputs(step=-1, outputs=outputs)


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
decode_reply: Callable[[bytes], Reply] = decoder(Reply)
"""What the front received from the engine. Raises ProtocolError."""
