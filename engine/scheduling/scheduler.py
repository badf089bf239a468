"""Which tokens the next step computes: continuous batching over the block tables.

There is no prefill phase and no decode phase. Every step gives each sequence some tokens to compute
until the token budget is spent: sequences with one token to go first, then the chunks of long
prompts, then waiting sequences, by priority and in the order they came. Without memory, resident
sessions give way first, then the newest running sequence of the lowest priority is preempted; so it is
for a waiting one of a higher priority. The scheduler sees lengths and blocks; it does not see tensors,
text or sockets.
"""

from __future__ import annotations

import time
from bisect import insort_left, insort_right
from dataclasses import dataclass, field
from operator import attrgetter

from engine.blocks.paged import PagedBlocks
from engine.blocks.tables import BlockTables, Match
from engine.protocol import Preemption, PreemptionReason
from engine.requests.sequence import Sequence, common_prefix
from engine.scheduling.preemption import PreemptionCosts
from engine.scheduling.step import ScheduledStep, ScheduledTokens
from engine.sessions.residents import Sessions


@dataclass(slots=True)
class _Plan:
    """The step being put together."""

    budget: int
    parents: list[Sequence] = field(default_factory=list)
    """The sequences that may fork in this step."""
    spans: dict[int, ScheduledTokens] = field(default_factory=dict)
    preempted: bool = False

    def add(self, sequence: Sequence, start: int, count: int) -> None:
        self.spans[sequence.id] = ScheduledTokens(sequence, start, count)
        self.budget -= count

    def drop(self, sequence: Sequence) -> None:
        span = self.spans.pop(sequence.id, None)
        if span:
            self.budget += span.count
            sequence.computed -= span.count


class Scheduler:
    """Waiting and running sequences over one set of block tables."""

    def __init__(
        self,
        blocks: BlockTables,
        *,
        step_tokens: int,
        max_running: int,
        sessions: Sessions | None = None,
        costs: PreemptionCosts | None = None,
    ) -> None:
        if min(step_tokens, max_running) < 1:
            raise ValueError("step_tokens and max_running are at least 1")
        self.blocks = blocks
        self.step_tokens = step_tokens
        self.max_running = min(max_running, step_tokens)
        self.waiting: list[Sequence] = []
        """The sequences that wait, the next one first."""
        self.running: list[Sequence] = []
        """The sequences that run, oldest admission first. The last one of the lowest priority is preempted first."""
        self._arrivals = 0
        self.preemptions = 0
        self._sessions = sessions
        self._costs = costs or PreemptionCosts()
        self._steps = 0
        self._hit_tokens = 0
        self._preempted: list[Preemption] = []
        self._stuck: list[Sequence] = []
        self._blocked: tuple[Sequence, int] | None = None
        """The head of the queue that did not fit, and the blocks that were available then."""

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, behind those of its priority."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        insort_right(self.waiting, sequence, key=_turn)

    def reorder(self) -> None:
        """Sort the queue again, because some sequence's priority was changed."""
        self.waiting.sort(key=_turn)

    def remove(self, sequence: Sequence, *, keep: bool = False) -> None:
        """Take a sequence out, wherever it stands. Its blocks go back, or (`keep`) stay as its session's resident."""
        sequence.ended = True
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if keep and self._sessions and sequence.table:
            self._sessions.keep(sequence)
        else:
            self.blocks.release(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Start a running sequence that shares all blocks of another running one."""
        self._fork(parent, child, parent.computed)

    def pause(self, sequence: Sequence) -> None:
        """Compute no more for a sequence that has, or is promised, all its tokens. Its blocks stay until `remove`."""
        self.running.remove(sequence)

    def schedule(self, alone: bool = True) -> ScheduledStep | None:
        """The next step, or None when nothing can be computed. Blocks are taken and tokens counted as computed.

        `alone`: no other step is on its way, whose end might free blocks.
        """
        plan = _Plan(self.step_tokens)
        self._make_way(plan)
        plan.parents = [sequence for sequence in self.running if sequence.children]
        self._fork_beams(plan)
        self._schedule_running(plan)
        self.blocks.publish_spans(plan.spans.values())
        if not plan.preempted:
            self._admit_waiting(plan, alone)
        if not plan.spans:
            return None
        self._fork_answers(plan)
        self._steps += 1
        moves = self.blocks.take_moves()
        return ScheduledStep(self._steps, list(plan.spans.values()), moves.swap_out, moves.copies, moves.swap_in)

    def take_hit_tokens(self) -> int:
        """Counts the prompt tokens that sequences admitted since the last call found in the cache."""
        tokens, self._hit_tokens = self._hit_tokens, 0
        return tokens

    def take_preempted(self) -> list[Preemption]:
        """Returns the preemptions since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def take_stuck(self) -> list[Sequence]:
        """Returns the sequences taken out because they can never fit, while pinned sessions hold the rest."""
        stuck, self._stuck = self._stuck, []
        return stuck

    def check(self) -> None:
        """Raise AssertionError when the queues are not as they should be. For tests and idle moments."""
        queued = [*self.running, *self.waiting]
        assert len(queued) == len({sequence.id for sequence in queued}), "a sequence stands in one place"
        assert not any(sequence.ended for sequence in queued), "what has ended stands nowhere"
        assert not any(sequence.table for sequence in self.waiting), "what waits has no blocks"
        assert len(self.running) <= self.max_running, "no more run than may"
        assert self.waiting == sorted(self.waiting, key=_turn), "the queue is in order"

    # -- running -------------------------------------------------------------------------------

    def _schedule_running(self, plan: _Plan) -> None:
        others = self.running
        if len(others) <= plan.budget:  # each is certain to get a token
            plan.spans, others = self.blocks.decode_in_place(others)
            plan.budget -= len(plan.spans)
        for sequence in sorted(others, key=_order_of_work):
            if plan.budget == 0 or (_is_prefill(sequence) and self._waits_before(sequence)):
                return
            if sequence.table and sequence.id not in plan.spans:  # no sequence before it preempted or planned it
                for member, count in self._work(sequence, plan.budget):
                    if not self._grow(plan, member, count):
                        break

    def _waits_before(self, sequence: Sequence) -> bool:
        """Tells whether the head of the queue has a higher priority: its first chunk goes before this one's next."""
        return bool(self.waiting) and self.waiting[0].priority < sequence.priority

    def _work(self, sequence: Sequence, budget: int) -> list[tuple[Sequence, int]]:
        """Returns (sequence, tokens) to compute with a running sequence. Beams decode in lockstep or not at all."""
        missing = len(sequence.tokens) - sequence.computed
        group = sequence.group
        if missing == 0:  # a step on its way brings its next token
            return []
        if group is None or len(group.beams) == 1:
            return [(sequence, min(missing, budget))]
        if missing > 1:  # it is recomputed after a preemption, up to where the others are
            return [(sequence, min(missing - 1, budget))]
        if group.ready and len(group.beams) <= budget:
            return [(beam, 1) for beam in group.beams]
        return []

    def _grow(self, plan: _Plan, sequence: Sequence, count: int) -> bool:
        """Make room for `count` tokens, taking from residents and then from the next victim.

        False when the sequence itself had to go.
        """
        start = sequence.computed
        while not self.blocks.grow(sequence, count):
            if self._sessions and self._sessions.reclaim():
                continue
            victim = self._victim()
            self._preempt(plan, victim)
            if victim is sequence or (victim.group is not None and victim.group is sequence.group):
                return False
        plan.add(sequence, start, count)
        return True

    def _victim(self) -> Sequence:
        """Returns the newest running sequence of the lowest priority."""
        return max(reversed(self.running), key=attrgetter("priority"))

    def _preempt(self, plan: _Plan, victim: Sequence) -> None:
        """Put the victim (with all its beams) back in the queue; its blocks are swapped out or given up.

        Given up, full blocks keep their content and their hash, so most of it is found in the cache later.
        """
        plan.preempted = True
        members = victim.group.beams if victim.group else [victim]
        for member in members:
            if member not in self.running:  # this beam has not forked again since the last preemption
                continue
            plan.drop(member)
            self.running.remove(member)
            self.blocks.events.add("preempt", -1, member.id, member.session)
            self._preempted.append(self._take_blocks_from(member))
            member.preemptions += 1
        if victim.group:
            members[0].children = members[1:]
        self.preemptions += 1
        insort_left(self.waiting, members[0], key=_turn)

    def _take_blocks_from(self, sequence: Sequence) -> Preemption:
        """Swap its blocks out where that is measured to be cheaper and host memory has room; else give them up."""
        blocks, tokens, count = self.blocks, sequence.computed, len(sequence.table)
        choice = self._costs.choose(tokens, count)
        reason: PreemptionReason
        swap, reason = choice.swap, "cheaper" if choice.swap_s is not None else "not measured"
        if not isinstance(blocks, PagedBlocks) or not blocks.can_swap_out(sequence):
            swap, reason = False, "no host memory"
        elif sequence.group is not None or sequence.children:
            swap, reason = False, "shares its future"
        if swap:
            assert isinstance(blocks, PagedBlocks)
            blocks.swap_out(sequence)
        else:
            blocks.release(sequence)
        return Preemption(
            seq=sequence.id,
            session=sequence.session,
            tokens=tokens,
            blocks=count,
            method="swap" if swap else "recompute",
            recompute_s=choice.recompute_s,
            swap_s=choice.swap_s,
            priority=sequence.priority,
            reason=reason,
        )

    # -- waiting -------------------------------------------------------------------------------

    def _make_way(self, plan: _Plan) -> None:
        """What runs at a lower priority than the head of the queue gives way to it, until it can be admitted.

        Before anything of the step is planned, since blocks that a plan fills are addressable at once.
        """
        while self.waiting and self.running:
            head, victim = self.waiting[0], self._victim()
            if victim.priority <= head.priority or not self._is_held_up(head):
                break
            self._preempt(plan, victim)
        plan.preempted = False  # the head may take what has become free

    def _is_held_up(self, head: Sequence) -> bool:
        """Tells whether there is no place for it, or no memory (which is known from the step before)."""
        if self._places_taken() + _places(head) > self.max_running:
            return True
        blocked = self._blocked is not None and self._blocked[0] is head
        return blocked and self.blocks.fits(head, len(self.running)) is None

    def _admit_waiting(self, plan: _Plan, alone: bool) -> None:
        while self.waiting and plan.budget > 0:
            sequence = self.waiting[0]
            if self._places_taken() + _places(sequence) > self.max_running:
                return
            if not self._admit(sequence):
                if alone and not self.running and not plan.spans:
                    self._stuck.append(self.waiting.pop(0))
                return
            self.waiting.pop(0)
            self.running.append(sequence)
            if sequence.children:
                plan.parents.append(sequence)
            start = sequence.computed
            (_, count), *_ = self._work(sequence, plan.budget) or [(sequence, 0)]
            if count > 0:
                grown = self.blocks.grow(sequence, count)
                assert grown, "a sequence that fits as a whole has room for its first chunk"
                self.blocks.publish(sequence, start)
                plan.add(sequence, start, count)

    def _places_taken(self) -> int:
        """Counts the sequences that run, and those that they will soon become."""
        growing = [sequence for sequence in self.running if sequence.children or sequence.group]
        return len(self.running) + sum(_places(sequence) - 1 for sequence in growing)

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence its first blocks: what its session kept, or the cached prefix. False without memory.

        It must fit as a whole, and each running sequence must still be able to take a block: admitted
        into less, it would be preempted again at once.
        """
        available = self.blocks.pool.available
        reclaimable = self._sessions is not None and self._sessions.reclaimable
        if self._blocked and self._blocked[0] is sequence and available <= self._blocked[1] and not reclaimable:
            return False  # nothing was given back since it last did not fit
        while True:
            if self._resume(sequence):
                break
            match = self.blocks.fits(sequence, len(self.running))
            if match is not None:
                self.blocks.admit(sequence, match)
                break
            if not (self._sessions and self._sessions.reclaim()):
                self._blocked = (sequence, self.blocks.pool.available)
                return False
        self._blocked = None
        if not sequence.admitted:
            sequence.admitted = True
            sequence.admitted_at = time.monotonic()
            sequence.cached_tokens = sequence.computed
            self._hit_tokens += sequence.computed
        return True

    def _resume(self, sequence: Sequence) -> bool:
        """Continue in the blocks of the session's last turn, as far as both agree."""
        blocks, sessions = self.blocks, self._sessions
        session = sessions.get(sequence.session) if sessions else None
        if sessions is None or session is None or session.resident is None or not isinstance(blocks, PagedBlocks):
            return False
        resident = session.resident
        if sequence.swapped or sequence.admitted or resident.salt != sequence.salt:
            return False
        common = common_prefix(resident.tokens[: resident.computed], sequence.tokens[: sequence.reusable])
        match: Match = blocks.match(sequence)
        if common == 0 or common < len(match.blocks) * blocks.block_size:
            return False
        given_up = sum(blocks.pool.refs[block] == 1 for block in resident.table[blocks.blocks_for(common) :])
        needed = blocks.blocks_needed(sequence) - blocks.blocks_for(common) + 1  # the tail may have to be copied
        if needed + len(self.running) > blocks.pool.available + given_up:
            return False
        sessions.take(sequence.session)
        blocks.adopt(resident, sequence, common)
        return True

    # -- forks ---------------------------------------------------------------------------------

    def _fork_beams(self, plan: _Plan) -> None:
        """Preempted beams share again: each forks from the first one where both agree, once that is computed."""
        for parent in plan.parents:
            if parent.group and parent.computed == len(parent.tokens) - 1:
                children, parent.children = parent.children, []
                for child in children:
                    common = common_prefix(parent.tokens, child.tokens[:-1])
                    self._fork(parent, child, min(common, parent.computed))

    def _fork_answers(self, plan: _Plan) -> None:
        """The other answers to a prompt are born when the prompt is computed, and sample from the same logits.

        Done last, when nothing of this step can be preempted any more.
        """
        for parent in plan.parents:
            span = plan.spans.get(parent.id)
            if span and span.samples and parent.group is None:
                span.forks, parent.children = parent.children, []
                for child in span.forks:
                    self._fork(parent, child, len(child.tokens))

    def _fork(self, parent: Sequence, child: Sequence, tokens: int) -> None:
        assert isinstance(self.blocks, PagedBlocks), "only paged sequences fork"
        self.blocks.fork(parent, child, tokens)
        child.admitted = True
        child.admitted_at = parent.admitted_at
        child.arrival = parent.arrival
        child.cached_tokens = parent.cached_tokens
        self.running.append(child)


def _places(sequence: Sequence) -> int:
    """Counts the sequences that this one is or will soon become."""
    if sequence.group and len(sequence.group.beams) == 1:
        return sequence.group.search.params.width
    return 1 + len(sequence.children)


def _turn(sequence: Sequence) -> tuple[int, int]:
    """Returns where the sequence stands in the queue."""
    return sequence.priority, sequence.arrival


def _is_prefill(sequence: Sequence) -> bool:
    return len(sequence.tokens) - sequence.computed > 1


def _order_of_work(sequence: Sequence) -> tuple[bool, int]:
    return _is_prefill(sequence), sequence.priority
