"""The engine without its sockets: requests in, steps out.

```
schedule   engine/scheduling   which tokens the next step computes, in which blocks
execute    engine/execution    a StepInput to the runner, a StepResult back (a step or two later)
process    engine/requests     tokens to their sequences, ends, and what clients are told
```
`EngineCore` repeats these three, and reports what each step changed to whoever watches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.blocks import Policy, make_tables
from engine.blocks.observe.accounting import Accounting
from engine.execution.builder import StepBuilder
from engine.execution.step_input import StepResult
from engine.protocol import AddRequest, BlockContent, GetBlock, Snapshot, StepReport, TokenOutput
from engine.requests.limits import Limits
from engine.requests.live import Requests
from engine.requests.outputs import OutputProcessor
from engine.requests.sequence import Sequence
from engine.scheduling.async_steps import AsyncSteps, Runner
from engine.scheduling.preemption import PreemptionCosts
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import ScheduledStep
from engine.sessions.live import LiveSessions
from engine.sessions.residents import Sessions

if TYPE_CHECKING:
    from engine.sampling.grammar.compile import GrammarCompiler


class EngineCore:
    """Requests, sequences and their tokens, one step at a time. Not thread safe: one loop owns it."""

    def __init__(
        self,
        executor: Runner,
        *,
        num_blocks: int,
        block_size: int,
        max_context: int,
        vocab_size: int,
        step_tokens: int = 512,
        max_running: int = 256,
        prefix_cache: bool = True,
        policy: Policy = "paged",
        host_slots: int = 0,
        grammars: GrammarCompiler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` tells the seconds that blocks are paid for."""
        self.max_context = min(max_context, num_blocks * block_size)
        self.vocab_size = vocab_size
        self.blocks = make_tables(
            policy,
            num_blocks=num_blocks,
            block_size=block_size,
            max_context=self.max_context,
            prefix_cache=prefix_cache,
            host_slots=host_slots,
        )
        self.sessions = Sessions(self.blocks)
        self.costs = PreemptionCosts()
        self.scheduler = Scheduler(
            self.blocks,
            step_tokens=step_tokens,
            max_running=max_running,
            sessions=self.sessions if self.blocks.shares else None,
            costs=self.costs,
        )
        self.accounting = Accounting(num_blocks, block_size, self.max_context, clock)
        self.executor = executor
        self.builder = StepBuilder(2 * self.scheduler.max_running, block_size, vocab_size)
        self._steps = AsyncSteps(executor, self.builder)
        limits = Limits(
            num_blocks=num_blocks,
            block_size=block_size,
            max_context=self.max_context,
            vocab_size=vocab_size,
            max_running=self.scheduler.max_running,
            shares=self.blocks.shares,
            grammars=grammars is not None,
        )
        ids = itertools.count(1).__next__
        self.requests = Requests(limits, self.scheduler, self.accounting, grammars, ids)
        self._outputs = OutputProcessor(
            self.requests, self.scheduler, self.blocks, self.sessions, self.accounting, self.max_context, ids
        )
        self.live_sessions = LiveSessions(self.sessions, self.scheduler, self.blocks, self.accounting, ids)
        self._report = -1

    @property
    def has_work(self) -> bool:
        """True while a call to `step` would do something."""
        return bool(self.requests or self._steps)

    def add(self, message: AddRequest) -> None:
        """See `Requests.add`."""
        self.requests.add(message)

    def set_priority(self, request_id: str, priority: int) -> None:
        """See `Requests.set_priority`."""
        self.requests.set_priority(request_id, priority)

    def abort(self, request_id: str, index: int | None = None) -> TokenOutput | None:
        """See `Requests.abort`."""
        return self.requests.abort(request_id, index)

    # -- steps ---------------------------------------------------------------------------------

    def step(self) -> tuple[list[TokenOutput], StepReport | None]:
        """Schedule a step, and take in the oldest one on its way. (new tokens and ends, what changed).

        With an executor that computes at once this is one and the same step; with a pipelined one the device computes
        the next step while the tokens of the last one are told. No report when no step was taken in.
        """
        self.requests.begin_compiled()
        started = time.perf_counter()
        outputs, steps = self.requests.take_pending(), self._steps
        # Requests that cannot go on without their tokens sit out the steps between. Where they are most of what runs,
        # it is better to have everybody in each step, one step at a time.
        room = 1 if self.requests.mostly_wait_for_tokens else steps.depth
        if len(steps) < room:
            step = self.scheduler.schedule(alone=not steps)
            outputs += [self._fail_for_memory(sequence) for sequence in self.scheduler.take_stuck()]
            if step is not None:
                self._launch(step, started)
                if len(steps) < room:
                    return outputs, None
        if not steps:
            return outputs, self.flush()
        return outputs, self._process(outputs)

    def flush(self) -> StepReport | None:
        """A report of what changed outside a step (aborts, sessions), if anything did."""
        if self.blocks.events.has_pending or self.blocks.has_new_lengths:
            return self._make_report(0.0, 0, 0, 0)
        return None

    def snapshot(self, ticket: int) -> Snapshot:
        """The pool's state. Call `flush` first and publish its report, so that the snapshot follows it."""
        return self.blocks.snapshot(
            ticket=ticket,
            step=self._report,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            preemptions=self.scheduler.preemptions,
        )

    def block_content(self, question: GetBlock) -> BlockContent:
        name = self.blocks.pool.name_of(question.block)
        return BlockContent(ticket=question.ticket, block=question.block, name=name.hex() if name else None)

    # -- inside --------------------------------------------------------------------------------

    def _launch(self, step: ScheduledStep, started: float) -> None:
        self.accounting.saw_step(step)
        for sample in self._steps.launch(step, started).samples:
            if sample.promised and self._outputs.is_full(sample.sequence, sample.place + 1):
                self.scheduler.pause(sample.sequence)

    def _process(self, outputs: list[TokenOutput]) -> StepReport:
        """Take in the oldest step on its way."""
        launched, result, duration = self._steps.collect()
        told, generated = self._outputs.process(launched, result)
        outputs += told
        self._learn_costs(launched.step, result, duration)
        reading = [span for span in launched.step.spans if span.start < span.sequence.prompt_len]
        prompt_tokens = sum(min(span.count, span.sequence.prompt_len - span.start) for span in reading)
        return self._make_report(duration, prompt_tokens, self.scheduler.take_hit_tokens(), generated)

    def _fail_for_memory(self, sequence: Sequence) -> TokenOutput:
        """It cannot fit beside what is pinned."""
        pool, pinned = self.blocks.pool, self.sessions.pinned_blocks
        text = (
            f"the request needs more blocks than it can ever get: {len(sequence.tokens)} tokens so far, "
            f"{pool.available} of {pool.num_blocks} blocks of {self.blocks.block_size} available"
            + (f", {pinned} held by pinned sessions" if pinned else "")
        )
        return self.requests.fail(sequence, "overloaded" if pinned else "too_long", text)

    def _learn_costs(self, step: ScheduledStep, result: StepResult, duration: float) -> None:
        tokens = sum(span.count for span in step.spans)
        moved = len(step.swap_out) + len(step.swap_in)
        if tokens > 2 * len(step.spans):
            self.costs.saw_tokens(tokens, duration - result.swap_s)
        if moved:
            self.costs.saw_blocks(moved, result.swap_s)

    def _make_report(self, duration: float, prompt: int, cached: int, generated: int) -> StepReport:
        self._report += 1
        first_event, events = self.blocks.events.drain()
        return StepReport(
            step=self._report,
            time=time.time(),
            duration_s=duration,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            preemptions=self.scheduler.preemptions,
            prompt_tokens=prompt,
            cached_tokens=cached,
            generated_tokens=generated,
            first_event=first_event,
            events=events,
            lengths=self.blocks.take_lengths(),
            preempted=self.scheduler.take_preempted(),
            compilations=self._steps.compilations,
            shadows=self.accounting.apply(events, self.scheduler.running),
        )
