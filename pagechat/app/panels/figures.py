"""Figures of the pool that are told in words: what contiguous reservation would hold, and a block table in one line."""

from __future__ import annotations

from dataclasses import dataclass

from engine.blocks.observe.mirror import PoolMirror, Table


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sequences in the pool against contiguous reservation in the same pool.

    The PagedAttention paper's "Orca (Max)" reserves room for the longest possible sequence at admission.
    """

    reserved_tokens: int
    """What each request would reserve."""
    contiguous: int
    """Requests the pool would hold that way."""
    sequences: int
    """Sequences that hold blocks now."""
    blocks_held: int
    """Physical blocks that they hold, a shared one counted once."""
    num_blocks: int

    @property
    def paged(self) -> int | None:
        """Sequences like those, at their present size, that the pool holds; None when there are none."""
        return self.num_blocks * self.sequences // self.blocks_held if self.blocks_held else None


def compare(mirror: PoolMirror, max_context: int) -> Comparison:
    """Contiguous reservation of `max_context` tokens a request against what is held now."""
    reach = min(max_context, mirror.num_blocks * mirror.block_size)  # no sequence can outgrow the pool
    return Comparison(
        reserved_tokens=reach,
        contiguous=mirror.num_blocks // -(-reach // mirror.block_size),
        sequences=len(mirror.tables),
        blocks_held=mirror.owned_blocks,
        num_blocks=mirror.num_blocks,
    )


def newest_table(mirror: PoolMirror, session: str) -> Table | None:
    """The block table that a session is writing to; None when it holds no blocks."""
    tables = [table for table in mirror.tables.values() if table.session == session and table.blocks]
    return max(tables, key=lambda table: table.seq, default=None)


def table_line(mirror: PoolMirror, session: str, width: int) -> str | None:
    """The session's newest block table: `0:007 1:002 ... 13:000 (9/16)`; the middle goes when it is too wide."""
    table = newest_table(mirror, session)
    if table is None:
        return None
    digits = len(str(mirror.num_blocks))
    entries = [f"{index}:{block:0{digits}}" for index, block in enumerate(table.blocks)]
    last = table.length - (len(table.blocks) - 1) * mirror.block_size
    end = f"({max(0, last)}/{mirror.block_size})"
    line = " ".join([*entries, end])
    if len(line) <= width:
        return line
    tail = entries[-2:]
    room = width - len(" ".join(["…", *tail, end])) - 1
    head: list[str] = []
    while entries[len(head) :] and len(" ".join([*head, entries[len(head)]])) <= room:
        head.append(entries[len(head)])
    return " ".join([*head, "…", *tail, end])
