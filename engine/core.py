"""The engine without its sockets: requests in, steps out.

`EngineCore` joins the scheduler to whatever executes a step (the runner; in tests and simulations
something that has no model) and turns each step into outputs for clients and a report for watchers.
"""

from __future__ import annotations

import time
from typing import Protocol

from engine.blocks.paged import PagedBlocks
from engine.protocol import AddRequest, ErrorCode, FinishReason, Snapshot, StepReport, TokenOutput
from engine.scheduler import Scheduler
from engine.sequence import Sequence, Step


class Executor(Protocol):
    """What computes a step."""

    def execute(self, step: Step) -> list[int]:
        """One sampled token id for each span that samples, in order."""
        ...


class EngineCore:
    """Requests, sequences and their tokens, one step at a time. Not thread safe: one loop owns it."""

    def __init__(
        self,
        executor: Executor,
        *,
        num_blocks: int,
        block_size: int,
        max_context: int,
        vocab_size: int,
        step_tokens: int = 512,
        max_running: int = 256,
        prefix_cache: bool = True,
    ) -> None:
        self.blocks = PagedBlocks(num_blocks, block_size, prefix_cache=prefix_cache)
        self.max_context = min(max_context, num_blocks * block_size)
        self.vocab_size = vocab_size
        self.scheduler = Scheduler(
            self.blocks, step_tokens=step_tokens, max_running=max_running, max_context=self.max_context
        )
        self._executor = executor
        self._requests: dict[str, Sequence] = {}
        self._next_sequence = 1
        self._refused: list[TokenOutput] = []
        self._report = -1

    @property
    def has_work(self) -> bool:
        """True while a call to `step` would do something."""
        return bool(self._requests or self._refused)

    def add(self, request: AddRequest) -> None:
        """Queue a request. One that can never be served is refused in the next step's outputs, with the numbers."""
        refusal = self._refusal(request)
        if refusal:
            self._refused.append(refusal)
            return
        sequence = Sequence(
            id=self._next_sequence,
            request_id=request.request_id,
            session=request.session,
            tokens=list(request.prompt),
            prompt_len=len(request.prompt),
            sampling=request.sampling,
            salt=request.salt,
        )
        self._next_sequence += 1
        self._requests[request.request_id] = sequence
        self.scheduler.add(sequence)

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request and give its blocks back. None when there is no such request (it may just have finished)."""
        sequence = self._requests.pop(request_id, None)
        if sequence is None:
            return None
        self.scheduler.remove(sequence)
        return _output(sequence, (), "abort")

    def step(self) -> tuple[list[TokenOutput], StepReport | None]:
        """Compute one step. (new tokens and ends, what changed); no report when nothing did."""
        started = time.perf_counter()
        outputs, self._refused = self._refused, []
        step = self.scheduler.schedule()
        if step is None:
            return outputs, self.flush()
        sampled = self._executor.execute(step)
        for sequence, token, reason in self.scheduler.commit(step, sampled):
            if reason:
                del self._requests[sequence.request_id]
            outputs.append(_output(sequence, (token,), reason))
        prompt_tokens = sum(
            max(0, min(span.start + span.count, span.sequence.prompt_len) - span.start) for span in step.spans
        )
        return outputs, self._make_report(
            time.perf_counter() - started, prompt_tokens, self.scheduler.take_hit_tokens(), len(sampled)
        )

    def flush(self) -> StepReport | None:
        """A report of what changed outside a step (aborts), if anything did."""
        if self.blocks.events.has_pending:
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
        )

    def _refusal(self, request: AddRequest) -> TokenOutput | None:
        prompt = len(request.prompt)
        message = ""
        code: ErrorCode = "bad_request"
        if request.request_id in self._requests:
            message = f"request id {request.request_id!r} is in use"
        elif prompt == 0:
            message = "the prompt has no tokens"
        elif not all(0 <= token < self.vocab_size for token in request.prompt):
            message = f"the prompt has a token id outside 0..{self.vocab_size - 1}"
        elif prompt >= self.max_context:
            code = "too_long"
            pool = self.blocks.pool.num_blocks * self.blocks.block_size
            message = (
                f"the prompt has {prompt} tokens, but a sequence may hold {self.max_context} with its answer "
                f"(the KV pool has {self.blocks.pool.num_blocks} blocks of {self.blocks.block_size} = {pool} slots)"
            )
        if not message:
            return None
        return TokenOutput(request.request_id, (), "error", prompt, 0, message, code)


def _output(sequence: Sequence, tokens: tuple[int, ...], reason: FinishReason | None) -> TokenOutput:
    return TokenOutput(sequence.request_id, tokens, reason, sequence.prompt_len, sequence.cached_tokens)
