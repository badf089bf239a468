"""What a simulation is given and what it tells: data only."""

from __future__ import annotations

import msgspec

from engine.blocks import Policy


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step, in nanoseconds: of the order of a 13B model on an A100 (weights read once a step, 2 FLOP a
    parameter and prompt token, the KV of a sequence read once)."""

    step_ns: int = 20_000_000
    prompt_token_ns: int = 130_000
    sequence_ns: int = 300_000

    def of(self, tokens: int, sequences: int) -> int:
        """Nanoseconds of a step of `tokens` tokens, one of them of each sequence not counted as prompt."""
        return self.step_ns + self.prompt_token_ns * (tokens - sequences) + self.sequence_ns * sequences


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated."""

    policy: Policy
    num_blocks: int
    block_size: int
    max_context: int
    """Tokens that contiguous-max reserves for each request."""
    max_running: int = 1024
    step_tokens: int = 2048
    rate: float | None = None
    """Arrival times divided by this; None queues all requests at the start (saturation)."""
    prefix_cache: bool = True
    cost: StepCost = StepCost()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    mean: float
    peak: int


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of all slots of the pool, 0..1."""

    reserved: float
    """Allocated, to be filled by the request that has them."""
    internal: float
    """Allocated and never to be filled: behind the request's last token, or in the last block (paged)."""
    external: float
    """Free, while the request at the head of the queue fits in no hole. Paged blocks need no hole: 0."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The pool at one moment, for plots."""

    seconds: float
    used: float
    """Share of the pool's slots that hold a token."""
    allocated: float
    held: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy made of the trace. Means are over simulated time; at saturation, over the time in which
    requests wait: the end, when the queue has run dry, is left out."""

    policy: Policy
    num_blocks: int
    block_size: int
    utilisation: float
    """Slots holding tokens over allocated slots."""
    pool_utilisation: float
    """Slots holding tokens over all slots: 1 less the waste and what is free."""
    requests_held: Held
    waste: Waste
    preemptions: int
    finished: int
    refused: int
    """Longer than the pool or the context."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    hit_share: float
    """Prompt blocks found in the prefix cache, over all prompt blocks."""
    scheduled_tokens: int
    """Tokens computed, those computed again after a preemption included."""
    steps: int
    seconds_simulated: float
    cpu_s: float
    """Processor time that the simulation took."""
    samples: list[Sample]
