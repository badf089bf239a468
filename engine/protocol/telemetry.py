"""What the engine publishes to every subscriber: reports of its steps, the pool's events in them, and snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from engine.protocol.codec import Message, decoder

BlockCount = Annotated[int, msgspec.Meta(ge=0, le=2**26)]
"""Blocks of a pool. A reader keeps some bytes for each, so a file that asks for more is not believed."""

BlockId = Annotated[int, msgspec.Meta(ge=-1, le=2**26)]
"""-1 where there is none."""

Number = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
"""Of a report or an event."""

NO_EVENT = 2**62
"""`first_event` of the empty report the front publishes when a new engine takes over. No engine counts so
far, so every mirror sees a gap and asks for a snapshot: a new engine's numbers start again at 0."""

EventKind = Literal["allocate", "share", "hit", "release", "copy", "cache", "evict", "preempt", "swap_out", "swap_in"]


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
    block: BlockId
    seq: int = -1
    session: str = ""
    index: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = -1
    source: BlockId = -1


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
    blocks: list[BlockId]
    """Block table: physical block of each logical block."""
    length: int
    """Tokens in those blocks."""


class Snapshot(Message, frozen=True):
    """The pool as it is just after report number `step`, and just before event `next_event`."""

    ticket: int
    next_event: Number
    step: Number
    num_blocks: BlockCount
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    sequences: list[SequenceSnapshot]
    cached: list[BlockId]
    """Blocks with content and no owner, next victim first."""
    addressable: list[BlockId]
    """Owned blocks that are content-addressable: they become cached when their last owner goes."""
    running: int
    waiting: int
    preemptions: int


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


decode_report: Callable[[bytes], StepReport] = decoder(StepReport)
"""A telemetry frame. Raises ProtocolError."""
