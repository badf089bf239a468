"""A sequence: one stream of tokens with a block table. It holds no tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol import SamplingParams
from engine.requests.beams import BeamSearch
from engine.sampling.logits_processors import LogitsProcessor


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
    """Prompt and generated token ids; the last ones may still be UNKNOWN: a step on its way will bring them."""
    prompt_len: int
    sampling: SamplingParams
    salt: bytes = b""
    index: int = 0
    """Which of its request's answers this is."""
    computed: int = 0
    """Tokens whose KV is in the blocks, those of a step under way included."""
    table: list[int] = field(default_factory=list)
    """Physical block of each logical block; ids are 1..num_blocks, block 0 is the null block."""
    room: int = 0
    """Tokens up to which it may grow in blocks that nobody else reads: behind them it needs a block, or a copy of one.
    The block tables lower it when they share or cut the table, and raise it as the sequence grows."""
    hashes: list[bytes] = field(default_factory=list)
    """Chain hash of each full logical block seen so far; survives preemption."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was there already at the first admission."""
    admitted: bool = False
    """Has been given blocks at least once."""
    admitted_at: float = 0.0
    """The time of that, by time.monotonic."""
    preemptions: int = 0
    priority: int = 0
    """Its request's: the lower number is served first."""
    arrival: int = 0
    """Its place among all that were ever queued; a fork's is that of what it forked from."""
    children: list[Sequence] = field(default_factory=list)
    """Sequences that will fork from this one as soon as all it has in common with them is computed."""
    group: BeamGroup | None = None
    """The beams it is one of."""
    swapped: list[int] = field(default_factory=list)
    """Host slot of each logical block, while the sequence's KV waits in host memory."""
    swapped_tokens: int = 0
    processor: LogitsProcessor | None = field(init=False)
    """None: temperature and the filters of likely tokens are all there is."""
    plain: bool = field(init=False)
    """True when a token is all that it wants of a step, chosen by temperature and filters alone."""
    scored: int = 0
    """Prompt tokens whose log probabilities a step has been asked for, the first one (which has none) not counted."""
    sent: int = 0
    """Entries at the beginning of `table` that the runner knows. The block tables lower it when they change one."""
    promised: int = 0
    """Tokens at the end that are UNKNOWN."""
    ended: bool = False
    """Has been taken out for good."""

    def __post_init__(self) -> None:
        self.processor = LogitsProcessor.of(self.sampling, self.prompt_len)
        wants = self.sampling.logprobs is not None or self.sampling.prompt_logprobs is not None
        self.plain = self.processor is None and not wants

    @property
    def known(self) -> int:
        """Tokens that are not UNKNOWN."""
        return len(self.tokens) - self.promised

    def drop_promises(self) -> None:
        """Forget the tokens that steps on their way will bring: they are not wanted."""
        del self.tokens[self.known :]
        self.promised = 0
        self.computed = min(self.computed, len(self.tokens))

    @property
    def runs_ahead(self) -> bool:
        """Whether the device can go on with it before its last token is known here. Where a grammar stands, and which
        beams live on, is decided here."""
        return self.group is None and self.sampling.grammar is None

    @property
    def scores_prompt(self) -> bool:
        """True while log probabilities of prompt tokens are still to be computed."""
        return self.sampling.prompt_logprobs is not None and self.scored < self.prompt_len - 1

    @property
    def reusable(self) -> int:
        """Tokens whose KV may be taken over; the logits of the others have to be computed."""
        return self.scored if self.scores_prompt else len(self.tokens) - 1

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The sequences that are the beams of one request. They decode in lockstep, in one step or in none."""

    search: BeamSearch
    beams: list[Sequence] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """True when every beam lacks only its newest token, so that all can be computed in the next step."""
        return all(beam.table and beam.computed == len(beam.tokens) - 1 for beam in self.beams) and not any(
            beam.children for beam in self.beams
        )


def common_prefix(one: list[int], other: list[int]) -> int:
    """Length of the longest common prefix, in tokens."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != other[index])
