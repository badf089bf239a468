"""What the memory pane shows, as data: the mirrored pool, letters of owners, flashes, rates. It draws nothing.

The pool's state comes from `PoolMirror` alone. Added here is what only a viewer needs: which letter stands
for which session, which blocks changed a moment ago, who last owned a cached block.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from engine.blocks.observe.mirror import PoolMirror
from engine.protocol import PoolStatus, ShadowStatus, Snapshot, StepReport
from pagechat.app.cells import Cell, Flash, Group
from pagechat.app.letters import Letters
from pagechat.app.timelines import Timelines

FLASH_S = 0.8
RATE_WINDOW_S = 5.0
LOOKED_AT = 4
"""Blocks of a group whose owners stand for all of them."""
MOST_HELD = 20_000
"""Reports kept while the view is frozen; with more, it starts again from a snapshot."""


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
        self._since: dict[int, tuple[float, float]] = {}
        """When a block got its present content, and when that last changed, as far as this view saw it."""
        self.shadows: list[ShadowStatus] = []
        """How other policies would fare; the last that the engine told."""
        self.timelines = Timelines()
        self.preempted: Counter[str] = Counter()
        """Preemptions of each session."""
        self.counts: Counter[str] = Counter()
        """Events of each kind."""
        self._told_at = clock()
        """When the last report came."""
        self.frozen_at: float | None = None
        self._held: deque[StepReport] = deque(maxlen=MOST_HELD)
        self._totals: tuple[int, PoolStatus] | None = None

    def reset(self, snapshot: Snapshot | None) -> None:
        """Start again from a snapshot; None: the engine is gone, and so is its pool."""
        self.mirror = PoolMirror.from_snapshot(snapshot) if snapshot else None
        if self.mirror:
            self.mirror.take_changed()  # everything: said by redraw_all
        self._flashes.clear()
        self._last_owner.clear()
        self._generated.clear()
        self._prompt = self._hit = 0
        self._since.clear()
        self.shadows, self.timelines, self.preempted, self.counts = [], Timelines(), Counter(), Counter()
        self._held.clear()
        self.frozen_at = None
        for table in self.mirror.tables.values() if self.mirror else ():
            self.timelines.start(table.seq, table.session, table.length)
        self.redraw_all()

    # -- time ----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stand still, while the engine goes on: reports are kept, and shown later."""
        self.frozen_at = self._clock()
        self.version += 1

    def step_frozen(self) -> bool:
        """Show the next kept report. False when there is none. Raises MirrorGap."""
        if not self._held:
            return False
        self._advance(self._held.popleft())
        return True

    def thaw(self) -> None:
        """Catch up. Raises MirrorGap when the reports kept do not reach that far: take a snapshot."""
        self.frozen_at = None
        while self.step_frozen():
            pass
        self.version += 1

    @property
    def behind(self) -> int:
        """Reports that came since the view was frozen."""
        return len(self._held)

    def apply(self, report: StepReport) -> None:
        """Advance by a report, or keep it while frozen. Raises MirrorGap when it does not follow: take a snapshot."""
        if self.mirror is None:
            return
        if report.generated_tokens:  # what the engine does is told also while the map stands still
            self._generated.append((self._clock(), report.generated_tokens))
        if self.frozen_at is None:
            self._advance(report)
        else:
            self._held.append(report)

    def _advance(self, report: StepReport) -> None:
        mirror = self.mirror
        if mirror is None:
            return
        before = mirror.step
        mirror.apply(report)
        if mirror.step == before:
            return
        now = self._told_at = self._clock()
        preempted = {one.seq for one in report.preempted}
        self.counts.update(event.kind for event in report.events)
        for event in report.events:
            if event.kind == "release":
                self._last_owner[event.block] = event.session
                if event.seq in preempted:
                    self._flashes[event.block] = ("preempt", now + FLASH_S)
            elif event.kind in ("allocate", "hit", "share", "copy", "evict"):
                self._last_owner.pop(event.block, None)
                self._flashes[event.block] = (event.kind, now + FLASH_S)
                self._dirty.add(event.block)
                self._since[event.block] = (now, now)
        changed = mirror.take_changed()
        for block in changed:
            self._since[block] = (self._since.get(block, (now, now))[0], now)
        self._dirty |= changed
        self.timelines.apply(report)
        self.preempted.update(one.session for one in report.preempted)
        self.shadows = report.shadows or self.shadows
        self._prompt += report.prompt_tokens
        self._hit += report.cached_tokens
        self.version += 1

    def tidy_letters(self) -> None:
        """When letters run short, take back those of sessions that have no tab and no block any more."""
        if self.letters.scarce and self.letters.forget_unused({*self.sessions(), *self._last_owner.values()}):
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

    def group_of(self, blocks: Sequence[int]) -> Group:
        """How any blocks look together."""
        mirror = self.mirror
        if mirror is None:
            return Group(len(blocks), 0, False, "", False, False)
        owned = [block for block in blocks if mirror.refs[block]]
        return self._grouped(len(blocks), owned, lambda: any(block in mirror.cached for block in blocks))

    def group(self, first: int, end: int) -> Group:
        """How the blocks `first..end-1` look together. Cheaper than their cells."""
        mirror = self.mirror
        if mirror is None:
            return Group(end - first, 0, False, "", False, False)
        refs = mirror.refs[first:end]
        owned = [first + index for index, count in enumerate(refs) if count] if any(refs) else []
        return self._grouped(len(refs), owned, lambda: any(block in mirror.cached for block in range(first, end)))

    def _grouped(self, blocks: int, owned: list[int], cached: Callable[[], bool]) -> Group:
        """`owned`: those of the blocks that have an owner. `cached`: asked when none has one."""
        mirror = self.mirror
        if mirror is None or not owned:
            return Group(blocks, 0, cached(), "", False, False)
        looked_at = owned[:: max(1, len(owned) // LOOKED_AT)]
        letters = Counter(self.letters.get(mirror.tables[mirror.first_owner(block)].session) for block in looked_at)
        shared = 2 * sum(mirror.refs[block] > 1 for block in looked_at) > len(looked_at)
        flashes = self._flashes
        copied = bool(flashes) and any(block in flashes and flashes[block][0] == "copy" for block in owned)
        return Group(blocks, len(owned), False, letters.most_common(1)[0][0], shared, copied)

    def sessions(self) -> dict[str, int]:
        """Blocks held by each session that holds any, a block held twice by one session counted twice."""
        held: dict[str, int] = {}
        for table in self.mirror.tables.values() if self.mirror else ():
            held[table.session] = held.get(table.session, 0) + len(table.blocks)
        return held

    def totals(self) -> PoolStatus | None:
        """The totals, counted once for each version of the view: some of them cost the length of the pool."""
        if self.mirror is None:
            return None
        if self._totals is None or self._totals[0] != self.version:
            self._totals = (self.version, self.mirror.status())
        return self._totals[1]

    def preempted_times(self, session: str) -> int:
        """How often the session gave its blocks up for others, since the view began."""
        return self.preempted[session]

    def last_owner(self, block: int) -> str | None:
        """The session that last owned a cached block, when that was seen."""
        return self._last_owner.get(block)

    def written(self, block: int) -> float:
        """When the block got its present content, by the view's clock; minus infinity when nobody saw it."""
        found = self._since.get(block)
        return found[0] if found else -math.inf

    def last_used(self, block: int) -> float | None:
        """Seconds since one of its owners ran, or since the last of them left it; None when nobody saw that."""
        mirror = self.mirror
        if mirror is None:
            return None
        ends = [
            line.spans[-1].end
            for seq, _ in mirror.owners(block)
            if (line := self.timelines.get(seq)) is not None and line.spans
        ]
        if ends:
            return max(0.0, self.timelines.now - max(ends) + self._clock() - self._told_at)
        age = self.age(block)
        return age[1] if age else None

    def age(self, block: int) -> tuple[float, float] | None:
        """Seconds since the block got its present content, and since that last changed; None when nobody saw it."""
        found = self._since.get(block)
        return (self._clock() - found[0], self._clock() - found[1]) if found else None

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
