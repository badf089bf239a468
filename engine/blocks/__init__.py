"""The paged KV cache as bookkeeping: which block holds what, and who owns it. No tensor lives here.

pool.py        physical blocks: reference counts, free and cached list, content index
tables.py      block tables of sequences: what every allocation policy shares
paged.py       on demand, with prefix hits, forks, copy-on-write and swap: the policy `paged`
contiguous.py  reservation of consecutive blocks: the policies that paging replaced
runs.py        physical blocks for them: taken and given back as whole runs
observe/       the log of what changed, and what others make of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from engine.blocks.observe.events import EventLog
    from engine.blocks.tables import BlockTables

Policy = Literal["paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


def make_tables(
    policy: Policy,
    *,
    num_blocks: int,
    block_size: int,
    max_context: int,
    prefix_cache: bool = True,
    host_slots: int = 0,
    events: EventLog | None = None,
) -> BlockTables:
    """The block tables of a policy over a new pool, which reports to `events`."""
    # Imported here: whoever only mirrors a pool needs no sequences, and no numpy.
    from engine.blocks.contiguous import ContiguousBlocks
    from engine.blocks.paged import PagedBlocks

    if policy == "paged":
        return PagedBlocks(num_blocks, block_size, prefix_cache=prefix_cache, host_slots=host_slots, events=events)
    return ContiguousBlocks(num_blocks, block_size, policy=policy, max_context=max_context, events=events)
