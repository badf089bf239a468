"""What the memory pane shows, as data: the mirrored pool, letters of owners, flashes, rates. It draws nothing.

The pool's state comes from `PoolMirror` alone. Added here is what only a viewer needs: which letter stands
for which session, which blocks changed a moment ago, who last owned a cached block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from engine.blocks.mirror import PoolMirror
from engine.protocol import PoolStatus, Snapshot, StepReport

FLASH_S = 0.8
RATE_WINDOW_S = 5.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_LETTER = "?"

CellKind = Literal["free", "cached", "active", "shared", "filling"]
Flash = Literal["allocate", "hit", "share", "copy", "evict"]


@dataclass(frozen=True, slots=True)
class Cell:
    """How one block looks."""

    kind: CellKind
    letter: str = ""
    """Upper-case letter of the owner; of the last owner, for a cached block."""
    fill: int = 0
    """Eighths of the block that hold tokens, 0..8."""
    flash: Flash | None = None


class Letters:
    """One letter for each session: tabs keep theirs; sessions of other clients get one when they first own a block."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._tabs: set[str] = set()

    def open_tab(self, session: str) -> str:
        self._tabs.add(session)
        return self.get(session)

    def close_tab(self, session: str) -> None:
        """The letter stays until another session needs it."""
        self._tabs.discard(session)

    def get(self, session: str) -> str:
        """The session's letter, given now if it has none. `NO_LETTER` when all 26 are in use."""
        letter = self._of.get(session)
        if letter is None:
            taken = set(self._of.values())
            letter = next((free for free in LETTERS if free not in taken), NO_LETTER)
            self._of[session] = letter
        return letter

    @property
    def scarce(self) -> bool:
        """True when somebody has gone without."""
        return NO_LETTER in self._of.values()

    def forget_unused(self, used: Iterable[str]) -> None:
        """Take back the letters of sessions that have no tab and are not among `used`."""
        keep = self._tabs.union(used)
        self._of = {session: letter for session, letter in self._of.items() if session in keep and letter != NO_LETTER}


class PoolView:
    """The pool as the app sees it. `None` state (before the first snapshot) shows as an empty map."""

    def __init__(self, letters: Letters, clock: Callable[[], float] = time.monotonic) -> None:
        self.letters = letters
        self.mirror: PoolMirror | None = None
        self.version = 0
        """Grows with every report: counters need no redraw while it stands still."""
        self._clock = clock
        self._flashes: dict[int, tuple[Flash, float]] = {}
        self._last_owner: dict[int, str] = {}
        self._dirty: set[int] = set()
        self._all_dirty = True
        self._generated: deque[tuple[float, int]] = deque()
        self._prompt = self._hit = 0

    def reset(self, snapshot: Snapshot | None) -> None:
        """Start again from a snapshot; None: the engine is gone, and so is its pool."""
        self.mirror = PoolMirror.from_snapshot(snapshot) if snapshot else None
        if self.mirror:
            self.mirror.take_changed()  # everything: said by redraw_all
        self._flashes.clear()
        self._last_owner.clear()
        self._generated.clear()
        self._prompt = self._hit = 0
        self.redraw_all()

    def apply(self, report: StepReport) -> None:
        """Advance by a report. Raises MirrorGap when it does not follow: take a snapshot."""
        mirror = self.mirror
        if mirror is None:
            return
        before = mirror.step
        mirror.apply(report)
        if mirror.step == before:
            return
        now = self._clock()
        for event in report.events:
            if event.kind == "release":
                self._last_owner[event.block] = event.session
            elif event.kind in ("allocate", "hit", "share", "copy", "evict"):
                self._last_owner.pop(event.block, None)
                self._flashes[event.block] = (event.kind, now + FLASH_S)
                self._dirty.add(event.block)
        self._dirty |= mirror.take_changed()
        if report.generated_tokens:
            self._generated.append((now, report.generated_tokens))
        self._prompt += report.prompt_tokens
        self._hit += report.cached_tokens
        self.version += 1

    def tidy_letters(self) -> None:
        """When letters run short, take back those of sessions that have no tab and no block any more."""
        if self.letters.scarce:
            self.letters.forget_unused({*self.sessions(), *self._last_owner.values()})
            self.redraw_all()

    def redraw_all(self) -> None:
        """Everything may look different: letters moved, another pool."""
        self._all_dirty = True
        self.version += 1

    def take_dirty(self) -> set[int] | None:
        """Blocks that look different since the last call; None for all of them."""
        now = self._clock()
        over = [block for block, (_, until) in self._flashes.items() if until <= now]
        for block in over:
            del self._flashes[block]
        dirty, self._dirty = self._dirty.union(over), set()
        if self._all_dirty:
            self._all_dirty = False
            return None
        return dirty

    # -- reading -------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self.mirror.num_blocks if self.mirror else 0

    def cell(self, block: int) -> Cell:
        """How `block` (1..num_blocks) looks now."""
        mirror = self.mirror
        if mirror is None:
            return Cell("free")
        flash = self._flashes[block][0] if block in self._flashes else None
        refs = mirror.refs[block]
        if refs == 0:
            if mirror.state(block) == "free":
                return Cell("free", flash=flash)
            last = self._last_owner.get(block)
            return Cell("cached", self.letters.get(last) if last is not None else "", 8, flash)
        owners = mirror.owners(block)
        letter = self.letters.get(mirror.tables[owners[0][0]].session)
        filled = mirror.fill(block)
        # A block with a token never looks empty, one with a free slot never looks full.
        eighths = 8 if filled >= mirror.block_size else min(7, -(-filled * 8 // mirror.block_size))
        if refs > 1:
            return Cell("shared", letter, eighths, flash)
        return Cell("active" if eighths == 8 else "filling", letter, eighths, flash)

    def sessions(self) -> dict[str, int]:
        """Blocks held by each session that holds any, a block held twice by one session counted twice."""
        held: dict[str, int] = {}
        for table in self.mirror.tables.values() if self.mirror else ():
            held[table.session] = held.get(table.session, 0) + len(table.blocks)
        return held

    def totals(self) -> PoolStatus | None:
        return self.mirror.status() if self.mirror else None

    def last_owner(self, block: int) -> str | None:
        """The session that last owned a cached block, when that was seen."""
        return self._last_owner.get(block)

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens found in the prefix cache, since the mirror began; None before the first prompt."""
        total = self._prompt + self._hit
        return self._hit / total if total else None

    def tokens_per_s(self) -> float:
        """Generated tokens over the last few seconds, all sequences together."""
        now = self._clock()
        while self._generated and self._generated[0][0] < now - RATE_WINDOW_S:
            self._generated.popleft()
        if not self._generated:
            return 0.0
        span = max(now - self._generated[0][0], 0.5)
        return sum(count for _, count in self._generated) / span

    @property
    def moving(self) -> bool:
        """True while the rate is still falling to zero, or a flash is still to end."""
        return bool(self._generated or self._flashes)


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
        blocks_held=sum(1 for refs in mirror.refs if refs),
        num_blocks=mirror.num_blocks,
    )


def table_line(mirror: PoolMirror, session: str, width: int) -> str | None:
    """The session's newest block table: `0:007 1:002 ... 13:000 (9/16)`; the middle goes when it is too wide."""
    tables = [table for table in mirror.tables.values() if table.session == session and table.blocks]
    if not tables:
        return None
    table = max(tables, key=lambda table: table.seq)
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
