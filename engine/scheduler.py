"""Which tokens the next step computes: continuous batching over the block tables.

There is no prefill phase and no decode phase. Every step gives each sequence some tokens to compute
until the token budget is spent: sequences with one token to go first, then the chunks of long
prompts, then waiting sequences. Without memory the newest running sequence is preempted (recompute).
The scheduler sees lengths and blocks; it does not see tensors, text or sockets.
"""

from __future__ import annotations

from collections import deque

from engine.blocks.paged import PagedBlocks
from engine.protocol import FinishReason
from engine.sequence import Sequence, Span, Step


class Scheduler:
    """Waiting and running sequences over one set of block tables."""

    def __init__(self, blocks: PagedBlocks, *, step_tokens: int, max_running: int, max_context: int) -> None:
        if min(step_tokens, max_running, max_context) < 1:
            raise ValueError("step_tokens, max_running and max_context are at least 1")
        self.blocks = blocks
        self.step_tokens = step_tokens
        self.max_running = min(max_running, step_tokens)
        self.max_context = max_context
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """Oldest admission first; the last one is preempted first."""
        self.preemptions = 0
        self._steps = 0
        self._hit_tokens = 0
        self._blocked: tuple[Sequence, int] | None = None
        """The head of the queue that did not fit, and the blocks that were available then."""

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. The caller has checked that it can fit."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands, and give its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.blocks.release(sequence)

    def schedule(self) -> Step | None:
        """The next step, or None when nothing can be computed. Blocks are taken and tokens counted as computed."""
        spans: dict[int, Span] = {}
        preempted = self._schedule_running(spans)
        for span in spans.values():
            self.blocks.publish(span.sequence, span.start)
        if not preempted:
            self._admit_waiting(spans)
        if not spans:
            return None
        self._steps += 1
        return Step(self._steps, list(spans.values()), self.blocks.take_copies())

    def commit(self, step: Step, sampled: list[int]) -> list[tuple[Sequence, int, FinishReason | None]]:
        """Append the sampled tokens; end the sequences that are done. (sequence, token, finish reason) each."""
        results: list[tuple[Sequence, int, FinishReason | None]] = []
        tokens = iter(sampled)
        for span in step.spans:
            if span.samples:
                sequence = span.sequence
                token = next(tokens)
                sequence.tokens.append(token)
                reason = self._finish_reason(sequence, token)
                if reason:
                    self.remove(sequence)
                results.append((sequence, token, reason))
        return results

    def take_hit_tokens(self) -> int:
        """Prompt tokens that sequences admitted since the last call found in the cache."""
        tokens, self._hit_tokens = self._hit_tokens, 0
        return tokens

    def _schedule_running(self, spans: dict[int, Span]) -> bool:
        """Give running sequences their tokens, preempting for memory. True when something was preempted."""
        budget = self.step_tokens
        preempted = False
        for sequence in sorted(self.running, key=_is_prefill):
            if budget == 0:
                break
            if not sequence.table:  # preempted for one that came before it in this very loop
                continue
            start = sequence.computed
            count = min(len(sequence.tokens) - start, budget)
            while not self.blocks.grow(sequence, count):
                victim = self.running[-1]
                preempted = True
                self._preempt(victim)
                if victim.id in spans:
                    budget += spans.pop(victim.id).count
                if victim is sequence:
                    break
            else:
                spans[sequence.id] = Span(sequence, start, count)
                budget -= count
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        """Give up a running sequence's blocks and put it back at the head of the queue, to be computed again.

        Full blocks keep their content and their hash, so most of it is found in the cache later.
        """
        self.running.remove(sequence)
        self.blocks.events.add("preempt", -1, sequence.id, sequence.session)
        self.blocks.release(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _admit_waiting(self, spans: dict[int, Span]) -> None:
        budget = self.step_tokens - sum(span.count for span in spans.values())
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            available = self.blocks.pool.available
            if self._blocked and self._blocked[0] is sequence and available <= self._blocked[1]:
                return
            match = self.blocks.match(sequence)
            if not self._fits(sequence, len(match.blocks), match.cost):
                self._blocked = (sequence, available)
                return
            self.waiting.popleft()
            self._blocked = None
            self.blocks.admit(sequence, match)
            if not sequence.admitted:
                sequence.admitted = True
                sequence.cached_tokens = sequence.computed
                self._hit_tokens += sequence.computed
            start = sequence.computed
            count = min(len(sequence.tokens) - start, budget)
            grown = self.blocks.grow(sequence, count)
            assert grown, "a sequence that fits as a whole has room for its first chunk"
            self.blocks.publish(sequence, start)
            self.running.append(sequence)
            spans[sequence.id] = Span(sequence, start, count)
            budget -= count

    def _fits(self, sequence: Sequence, matched: int, cost: int) -> bool:
        """True when all its present tokens fit at once and each running sequence could still take a block.

        Admitting less than the whole sequence, or into the last blocks, would preempt it again at once.
        """
        needed = -(-len(sequence.tokens) // self.blocks.block_size) - matched + cost
        return needed + len(self.running) <= self.blocks.pool.available

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        if token in sequence.sampling.stop_token_ids:
            return "stop"
        if sequence.generated >= sequence.sampling.max_tokens or len(sequence.tokens) >= self.max_context:
            return "length"
        return None


def _is_prefill(sequence: Sequence) -> bool:
    return len(sequence.tokens) - sequence.computed > 1
