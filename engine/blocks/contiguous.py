"""Contiguous reservation: the policies that paging replaced, on the same pool, for comparison.

A sequence gets one run of consecutive blocks at its admission, as large as it may ever need, and
keeps it to its end; nothing is shared. Three ways to guess how large, after the PagedAttention paper
(Kwon et al., SOSP 2023, section 6.1, its Orca baselines):

```
contiguous-max     the model's whole context
contiguous-pow2    prompt + output rounded up to a power of two
contiguous-oracle  prompt + output exactly
```
The output's length is taken to be `max_tokens`, which is exact for requests that ignore EOS, as the
benchmarks and traces do; for others pow2 and oracle reserve for the longest answer allowed.
"""

from __future__ import annotations

from typing import Literal, get_args

from engine.blocks.observe.events import EventLog
from engine.blocks.runs import RunPool
from engine.blocks.tables import BlockTables, Match
from engine.requests.sequence import Sequence

Reservation = Literal["contiguous-max", "contiguous-pow2", "contiguous-oracle"]
RESERVATIONS: tuple[Reservation, ...] = get_args(Reservation)


def reserved_tokens(policy: Reservation, prompt: int, output: int, max_context: int) -> int:
    """Counts the slots that a request reserves at its admission."""
    if policy == "contiguous-max":
        return max_context
    if policy == "contiguous-pow2":
        output = 1 << (output - 1).bit_length()
    return min(prompt + output, max_context)


class ContiguousBlocks(BlockTables):
    """It gives each sequence a run of consecutive blocks, from the first hole that is large enough."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        policy: Reservation,
        max_context: int,
        events: EventLog | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, events)
        self.policy = policy
        self.max_context = min(max_context, num_blocks * block_size)
        self.pool = self._runs = RunPool(num_blocks, self.events)

    def fits(self, sequence: Sequence, headroom: int) -> Match | None:
        """Finds the first hole that is large enough. No headroom is needed, because a reservation never grows."""
        needed = self._reserved_blocks(sequence)
        first = self._runs.find_run(needed)
        return None if first is None else Match(list(range(first, first + needed)), needed)

    def admit(self, sequence: Sequence, match: Match) -> None:
        self._runs.take_run(match.blocks[0], len(match.blocks))
        sequence.table.extend(match.blocks)
        sequence.room = len(sequence.table) * self.block_size
        self.events.add_blocks("allocate", sequence.table, sequence.id, sequence.session)
        self._track(sequence)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        assert sequence.computed + tokens <= sequence.room, "outgrew its reservation"
        sequence.computed += tokens
        self._changed[sequence.id] = sequence
        return True

    def release(self, sequence: Sequence) -> None:
        if sequence.table:
            self._runs.release_run(sequence.table[0], len(sequence.table))
            self.events.add_blocks("release", sequence.table, sequence.id, sequence.session)
            sequence.table.clear()
            sequence.sent = 0
        super().release(sequence)

    def _reserved_blocks(self, sequence: Sequence) -> int:
        output = sequence.sampling.max_tokens
        return self.blocks_for(reserved_tokens(self.policy, sequence.prompt_len, output, self.max_context))

    def _check_table(self, sequence: Sequence) -> None:
        first = sequence.table[0]
        assert sequence.table == list(range(first, first + len(sequence.table))), "a reservation is one run"
        assert len(sequence.table) == self._reserved_blocks(sequence), "a reservation keeps its size"
        assert sequence.computed <= len(sequence.table) * self.block_size
