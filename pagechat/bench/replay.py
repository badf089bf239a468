"""A trace through the engine's own block pool and scheduler, without a model.

Only the forward pass is missing: a step takes the time that `StepCost` says, and an answer ends at the length
that the trace recorded. Everything counted is an integer (slots, nanoseconds), so that sums have no rounding.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from engine.blocks import make_tables
from engine.blocks.observe.events import EventLog, SilentLog
from engine.protocol import SamplingParams
from engine.requests.sequence import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import ScheduledStep
from pagechat.bench.outcome import Held, Outcome, Sample, Setup, Waste
from pagechat.bench.traces import HASHED_TOKENS, Trace, TraceRequest

_SAMPLES = 480
"""Most points of a plot."""


class Stream(list[int]):
    """Tokens whose length alone matters, and whose blocks have names: a slice is a tuple that is equal for equal
    content. That keeps the pool's hashing and comparing real, and 144 million token ids out of memory."""

    __slots__ = ("hash_ids", "prompt", "stream")

    def __init__(self, request: TraceRequest) -> None:
        super().__init__([0] * request.prompt)
        self.prompt, self.hash_ids, self.stream = request.prompt, request.hash_ids, request.stream

    def __getitem__(self, part: slice) -> tuple[int, ...]:  # type: ignore[override]
        last = part.stop - 1
        if last < self.prompt and self.hash_ids:  # an id names the whole prefix up to the end of its block
            return (0, self.hash_ids[last // HASHED_TOKENS], last % HASHED_TOKENS)
        return (1, self.stream, last)


@dataclass(slots=True)
class _Sums:
    """Integrals over time, in slots x nanoseconds (of `held`: requests x nanoseconds)."""

    time: int = 0
    held: int = 0
    allocated: int = 0
    empty: int = 0
    never: int = 0
    external: int = 0

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.time + other.time,
            self.held + other.held,
            self.allocated + other.allocated,
            self.empty + other.empty,
            self.never + other.never,
            self.external + other.external,
        )


@dataclass(slots=True)
class _Moment:
    """The pool between two steps, in slots."""

    allocated: int = 0
    empty: int = 0
    """Allocated slots without a token."""
    never: int = 0
    """Of those, the ones that no token will come to."""
    external: int = 0


@dataclass(slots=True)
class _Arrivals:
    """Requests on their way to the scheduler."""

    trace: Trace
    rate: float | None
    ahead: deque[int] = field(default_factory=deque)
    """Not there yet, in order of arrival."""
    queue: deque[int] = field(default_factory=deque)
    """There, first come first."""
    _turns: dict[int, int] = field(default_factory=dict)
    """The turn after each request."""

    def __post_init__(self) -> None:
        for index, request in enumerate(self.trace.requests):
            if request.follows is None:
                self.ahead.append(index)
            else:
                self._turns[request.follows] = index

    def next_ns(self) -> int | None:
        """When the next request comes; None when none does without another's end."""
        if not self.ahead:
            return None
        return 0 if self.rate is None else int(self.trace.requests[self.ahead[0]].arrival_s / self.rate * 1e9)

    def until(self, now: int) -> deque[int]:
        """The queue at this moment."""
        if self.ahead and self.rate is None:
            self.queue.extend(self.ahead)
            self.ahead.clear()
        while (due := self.next_ns()) is not None and due <= now:
            self.queue.append(self.ahead.popleft())
        return self.queue

    def ended(self, index: int) -> None:
        """A request ended: the turn that waited for it comes."""
        if index in self._turns:
            self.queue.append(self._turns.pop(index))


class Replay:
    """One trace under one setup. `run` once."""

    def __init__(self, trace: Trace, setup: Setup, *, events: EventLog | None = None, run_ahead: bool = True) -> None:
        self.setup = setup
        self.blocks = make_tables(
            setup.policy,
            num_blocks=setup.num_blocks,
            block_size=setup.block_size,
            max_context=setup.max_context,
            prefix_cache=setup.prefix_cache,
            events=events or SilentLog(),
        )
        self.scheduler = Scheduler(self.blocks, step_tokens=setup.step_tokens, max_running=setup.max_running)
        self.now = 0
        """Nanoseconds."""
        self._trace = trace
        self._run_ahead = run_ahead
        self._arrivals = _Arrivals(trace, setup.rate)
        self._longest = min(setup.max_context, setup.num_blocks * setup.block_size)
        self._waiting, self._flowing = _Sums(), _Sums()
        self._moment = _Moment()
        self._blocked: tuple[Sequence, int, bool] | None = None
        self._peak = self._steps = self._scheduled = self._cached = self._preemptions = 0
        self._finished = self._refused = self._prompt_tokens = self._prompt_blocks = self._output_tokens = 0
        self._samples: list[Sample] = []
        self._sample_ns, self._next_sample = 10**9, 0

    def run(self) -> Outcome:
        """Replay the whole trace."""
        started = time.process_time()
        while self._feed():
            step = self.scheduler.schedule()
            for stuck in self.scheduler.take_stuck():
                self._refused += 1
                self._arrivals.ended(stuck.id)
            if step is not None:
                self._after(step)
        return self._outcome(time.process_time() - started)

    # -- steps ---------------------------------------------------------------------------------

    def _feed(self) -> bool:
        """Hand the scheduler as many requests as it could admit in a step, waiting for one if there is nothing else
        to do. False when all is done."""
        scheduler = self.scheduler
        while True:
            queue = self._arrivals.until(self.now)
            while queue and len(scheduler.waiting) <= scheduler.max_running - len(scheduler.running):
                self._queue(queue.popleft())
            if scheduler.waiting or scheduler.running:
                return True
            due = self._arrivals.next_ns()
            if due is None and not self._arrivals.queue:
                return False
            self.now = max(self.now, due or 0)

    def _queue(self, index: int) -> None:
        request = self._trace.requests[index]
        if request.prompt + request.output > self._longest:
            self._refused += 1
            self._arrivals.ended(index)
            return
        self._prompt_tokens += request.prompt
        self._prompt_blocks += self.blocks.blocks_for(request.prompt)
        self._output_tokens += request.output
        self.scheduler.add(
            Sequence(
                id=index,
                request_id="",
                session="",
                tokens=Stream(request),
                prompt_len=request.prompt,
                sampling=SamplingParams(max_tokens=request.output, seed=0),
            )
        )

    def _after(self, step: ScheduledStep) -> None:
        """Count what the step holds and computes, take its time, append its tokens and end what is done."""
        spans, scheduler = step.spans, self.scheduler
        tokens = sum([span.count for span in spans])
        duration = self.setup.cost.of(tokens, len(spans))
        self.blocks.take_lengths()
        self._cached += scheduler.take_hit_tokens()
        self._measure()
        self._count(duration, 1, 0)
        sampling = [span.sequence for span in spans if span.start + span.count == len(span.sequence.tokens)]
        ended = []
        for sequence in sampling:
            generated = sequence.tokens
            generated.append(0)
            if len(generated) - sequence.prompt_len >= sequence.sampling.max_tokens:
                ended.append(sequence)
        for sequence in ended:
            scheduler.remove(sequence)
            self._finished += 1
            self._arrivals.ended(sequence.id)
        self._steps += 1
        self._scheduled += tokens
        preempted, self._preemptions = scheduler.preemptions > self._preemptions, scheduler.preemptions
        if self._run_ahead and not ended and not preempted and tokens == len(sampling) == len(scheduler.running):
            self._skip(duration)

    def _skip(self, duration: int) -> None:
        """Decode as far as nothing can happen: no request ends or comes, no block fills or is taken.

        The last step decoded one token of each running sequence, and ended and preempted none, so the pool and the head
        of the queue are as the scheduler left them when it could admit no more: until one of those things happens, each
        step would be like the last one.
        """
        paged, size = self.blocks.shares, self.setup.block_size
        running = self.scheduler.running
        steps = 10**9
        for sequence in running:
            left = sequence.prompt_len + sequence.sampling.max_tokens - len(sequence.tokens) - 1
            if paged:
                left = min(left, -sequence.computed % size - 1)
            if left < steps:
                steps = left
                if steps <= 0:
                    return
        due = self._arrivals.next_ns()
        if due is not None and not self.scheduler.waiting:
            steps = min(steps, -(-(due - self.now) // duration))
            if steps <= 0:
                return
        more = [0] * steps
        for sequence in running:
            self.blocks.grow(sequence, steps)
            sequence.tokens.extend(more)
        self._count(duration, steps, len(running))
        self._steps += steps
        self._scheduled += steps * len(running)

    # -- counting ------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Look at the pool as the step leaves it. O(running)."""
        size, moment = self.setup.block_size, self._moment
        pool, running = self.blocks.pool, self.scheduler.running
        moment.allocated = (pool.num_blocks - pool.available) * size
        # Blocks that sequences share are full, so each empty slot belongs to one of them, as room to grow.
        moment.empty = sum([s.room - s.computed for s in running])
        if not self.blocks.shares:
            # The last token ends its request: nothing is computed with it, so it needs no slot.
            moment.never = sum([s.room - s.prompt_len - s.sampling.max_tokens + 1 for s in running])
            moment.external = pool.available * size if self._head_fits_nowhere() else 0

    def _head_fits_nowhere(self) -> bool:
        waiting, available = self.scheduler.waiting, self.blocks.pool.available
        if not waiting:
            return False
        known = self._blocked
        if known is None or known[0] is not waiting[0] or known[1] != available:
            known = self._blocked = (waiting[0], available, self.blocks.fits(waiting[0], 0) is None)
        return known[2]

    def _count(self, duration: int, steps: int, filling: int) -> None:
        """Let equal steps pass. `filling`: slots that each of them fills before it is counted."""
        sums = self._waiting if self.scheduler.waiting or self._arrivals.queue else self._flowing
        moment, held, elapsed = self._moment, len(self.scheduler.running), duration * steps
        sums.time += elapsed
        sums.held += held * elapsed
        sums.allocated += moment.allocated * elapsed
        sums.empty += (moment.empty * steps - filling * (steps * (steps + 1) // 2)) * duration
        sums.never += moment.never * elapsed
        sums.external += moment.external * elapsed
        moment.empty -= filling * steps
        self.now += elapsed
        self._peak = max(self._peak, held)
        if self.now >= self._next_sample:
            self._sample(held)

    def _sample(self, held: int) -> None:
        """Keep at most `_SAMPLES` of them: beyond that every other one is dropped and they come half as often."""
        slots = self.setup.num_blocks * self.setup.block_size
        allocated = self._moment.allocated
        self._samples.append(Sample(self.now / 1e9, (allocated - self._moment.empty) / slots, allocated / slots, held))
        if len(self._samples) > _SAMPLES:
            del self._samples[::2]
            self._sample_ns *= 2
        self._next_sample = self.now + self._sample_ns

    def _outcome(self, cpu_s: float) -> Outcome:
        setup, sums = self.setup, self._waiting + self._flowing
        if setup.rate is None and self._waiting.time:
            sums = self._waiting
        time_ns = sums.time or 1
        whole = time_ns * setup.num_blocks * setup.block_size
        used = sums.allocated - sums.empty
        never = sums.empty if self.blocks.shares else sums.never
        return Outcome(
            policy=setup.policy,
            num_blocks=setup.num_blocks,
            block_size=setup.block_size,
            utilisation=used / (sums.allocated or 1),
            pool_utilisation=used / whole,
            requests_held=Held(mean=sums.held / time_ns, peak=self._peak),
            waste=Waste(reserved=(sums.empty - never) / whole, internal=never / whole, external=sums.external / whole),
            preemptions=self.scheduler.preemptions,
            finished=self._finished,
            refused=self._refused,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            cached_tokens=self._cached,
            hit_share=self._cached / setup.block_size / (self._prompt_blocks or 1),
            scheduled_tokens=self._scheduled,
            steps=self._steps,
            seconds_simulated=self.now / 1e9,
            cpu_s=cpu_s,
            samples=self._samples,
        )
