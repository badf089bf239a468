"""A sequence: one stream of tokens with a block table; and a step: what one forward pass computes.

These are the nouns the scheduler, the block manager and the runner share. They hold no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol import SamplingParams


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream of tokens. `tokens[:computed]` have their KV in `table`'s blocks.

    ```
    tokens    | prompt ................ | generated ....... |
    KV        | computed ........................... | to do |
    table     | block | block | block | block | block |        (block b holds tokens b*bs .. b*bs+bs-1)
    ```
    """

    id: int
    request_id: str
    session: str
    tokens: list[int]
    """Prompt and generated token ids."""
    prompt_len: int
    sampling: SamplingParams
    salt: bytes = b""
    computed: int = 0
    """Tokens whose KV is in the blocks, those of a step under way included."""
    table: list[int] = field(default_factory=list)
    """Physical block of each logical block; ids are 1..num_blocks, block 0 is the null block."""
    hashes: list[bytes] = field(default_factory=list)
    """Chain hash of each full logical block seen so far; survives preemption."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    admitted: bool = False
    """Has been given blocks at least once."""
    preemptions: int = 0

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start .. start+count-1` of a sequence, to compute in one step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """True when the span reaches the newest token: its logits choose the next one."""
        return self.start + self.count == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: spans of several sequences, prefill and decode alike."""

    number: int
    spans: list[Span]
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination) blocks to copy in all layers before the forward (copy-on-write)."""
