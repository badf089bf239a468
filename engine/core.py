"""The engine without its sockets: requests in, steps out.

`EngineCore` joins the scheduler to whatever executes a step (the runner; in tests and simulations
something that has no model) and turns each step into outputs for clients and a report for watchers.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import msgspec

from engine.blocks import Policy, make_tables
from engine.blocks.observe.accounting import Accounting
from engine.blocks.tables import Match
from engine.execution.builder import StepBuilder
from engine.execution.step_input import FAILED, StepResult
from engine.protocol import (
    AddRequest,
    BlockContent,
    ErrorCode,
    FinishReason,
    GetBlock,
    SamplingParams,
    SessionInfo,
    Snapshot,
    StepReport,
    TokenLogprobs,
    TokenOutput,
)
from engine.requests.beams import BeamGroup, BeamSearch
from engine.requests.limits import Limits
from engine.requests.request import Request
from engine.requests.sequence import Sequence, Step
from engine.sampling.grammar.queue import GrammarError, GrammarQueue
from engine.scheduling.async_steps import AsyncSteps, Launched, Runner
from engine.scheduling.preemption import PreemptionCosts
from engine.scheduling.scheduler import Scheduler
from engine.sessions.residents import Sessions

if TYPE_CHECKING:
    from engine.sampling.grammar.compile import GrammarCompiler, Matcher

_IDLE_PATIENCE = 0.005
"""Seconds a step waits for a grammar when nothing else is there to do."""


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
    ) -> None:
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
        self.accounting = Accounting(num_blocks, block_size, self.max_context)
        self.executor = executor
        self.builder = StepBuilder(2 * self.scheduler.max_running, block_size, vocab_size)
        self._steps = AsyncSteps(executor, self.builder)
        self._dependent: set[str] = set()
        """Requests whose next step needs the tokens of the last one here."""
        self._requests: dict[str, Request] = {}
        self._compiling = GrammarQueue(grammars)
        self._limits = Limits(
            num_blocks=num_blocks,
            block_size=block_size,
            max_context=self.max_context,
            vocab_size=vocab_size,
            max_running=self.scheduler.max_running,
            shares=self.blocks.shares,
            grammars=grammars is not None,
        )
        self._next_sequence = 1
        self._pending: list[TokenOutput] = []
        self._dropped: dict[str, set[int]] = {}
        """Answers that were aborted while their request's grammar was being compiled."""
        self._report = -1

    @property
    def has_work(self) -> bool:
        """True while a call to `step` would do something."""
        return bool(self._requests or self._pending or self._compiling or self._steps)

    # -- requests ------------------------------------------------------------------------------

    def add(self, message: AddRequest) -> None:
        """Queue a request. One that can never be served is refused in the next step's outputs, with the numbers."""
        refusal = self._limits.refusal(message)
        if message.request_id in self._requests or message.request_id in self._compiling:
            self._refuse(message, "bad_request", f"request id {message.request_id!r} is in use")
        elif refusal:
            self._refuse(message, *refusal)
        elif message.sampling.grammar:
            self._compiling.add(message, message.sampling.grammar)
        else:
            self._begin(message)

    def _begin(self, message: AddRequest, matcher: Matcher | None = None) -> None:
        sequences = [self._sequence(message, index) for index in range(1 if message.beam else message.n)]
        for sequence in sequences:
            if matcher and sequence.processor:
                sequence.processor.matcher = matcher.fork()
        first = sequences[0]
        group = None
        if message.beam:
            search = BeamSearch(
                message.beam,
                message.sampling.stop_token_ids,
                min(message.sampling.max_tokens, self.max_context - len(message.prompt)),
            )
            group = first.group = BeamGroup(search, [first])
        queued = [first]
        if self.blocks.shares:
            first.children = sequences[1:]
        else:
            queued = sequences
        self._requests[message.request_id] = Request(message, sequences, group)
        if not all(sequence.runs_ahead for sequence in sequences):
            self._dependent.add(message.request_id)
        self.accounting.begin(message)
        for sequence in queued:
            self.scheduler.add(sequence)

    def set_priority(self, request_id: str, priority: int) -> None:
        """From now on the request is served as if it had come with this priority. Nothing when there is no such
        request (it may just have finished)."""
        self._compiling.set_priority(request_id, priority)
        request = self._requests.get(request_id)
        if request is not None:
            for sequence in request.sequences:
                sequence.priority = priority
            self.scheduler.reorder()

    def abort(self, request_id: str, index: int | None = None) -> TokenOutput | None:
        """End a request, or one of its answers, and give the blocks back. None when there is no such request or answer
        (it may just have finished), and when it ends a little later: by an output of its own, as others do."""
        if index is not None and request_id in self._compiling:
            self._dropped.setdefault(request_id, set()).add(index)
            return None
        compiling = self._compiling.remove(request_id)
        if compiling:
            self._dropped.pop(request_id, None)
            return TokenOutput(request_id, (), "abort", len(compiling.prompt))
        request = self._requests.get(request_id)
        if request is None:
            return None
        if index is not None:
            return self._abort_one(request, index)
        for sequence in request.living():
            sequence.drop_promises()
            self.scheduler.remove(sequence, keep=request.keeps(sequence))
        self._forget(request)
        return request.output((), 0, "abort")

    def _abort_one(self, request: Request, index: int) -> TokenOutput | None:
        sequence = next((one for one in request.living() if one.index == index), None)
        if sequence is None or request.group:
            return None
        if sequence.children:  # they need its prompt: it ends with its first token, when they have forked
            request.dropped.add(index)
            return None
        for parent in request.sequences:
            if sequence in parent.children:
                parent.children.remove(sequence)
        sequence.drop_promises()
        self.scheduler.remove(sequence, keep=request.keeps(sequence))
        if request.finished(sequence):
            self._forget(request)
        for waits in [one for one in request.living() if one.index in request.dropped and not one.children]:
            if (output := self._abort_one(request, waits.index)) is not None:
                self._pending.append(output)
        return request.output((), index, "abort")

    # -- steps ---------------------------------------------------------------------------------

    def step(self) -> tuple[list[TokenOutput], StepReport | None]:
        """Schedule a step, and take in the oldest one on its way. (new tokens and ends, what changed).

        With an executor that computes at once this is one and the same step; with a pipelined one the device computes
        the next step while the tokens of the last one are told. No report when no step was taken in.
        """
        self._begin_compiled()
        started = time.perf_counter()
        outputs, self._pending = self._pending, []
        steps = self._steps
        room = steps.depth if self._runs_ahead else 1
        if len(steps) < room:
            step = self.scheduler.schedule(alone=not steps)
            outputs += [self._fail_for_memory(sequence) for sequence in self.scheduler.take_stuck()]
            if step is not None:
                self.accounting.saw_step(step)
                for sample in steps.launch(step, started).samples:
                    if sample.promised and self._is_full(sample.sequence, sample.place + 1):
                        self.scheduler.pause(sample.sequence)
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

    # -- sessions ------------------------------------------------------------------------------

    def fork_session(self, source: str, target: str, tokens: int | None = None) -> int:
        """Give `target` the blocks of the first `tokens` tokens that `source` has, running or resident; None: of all.

        Returns the tokens shared; 0 when there are none.
        """
        session = self.sessions.get(source)
        parent = session.resident if session else None
        for sequence in self.scheduler.running:
            if sequence.session == source and sequence.group is None:
                parent = sequence
        if parent is None or not parent.table or not self.blocks.shares:
            return 0
        shared = min(parent.computed, parent.known, parent.computed if tokens is None else tokens)
        child = Sequence(
            id=self._take_sequence_id(),
            request_id="",
            session=target,
            tokens=parent.tokens[:shared],
            prompt_len=shared,
            sampling=parent.sampling,
            salt=parent.salt,
        )
        self.blocks.fork(parent, child, shared)
        self.accounting.fork(source, target)
        self.sessions.keep(child)
        return child.computed

    def place_session(self, name: str, tokens: list[int], salt: bytes) -> list[int] | None:
        """Make a resident with room for `tokens`, whose KV the caller then writes. Its blocks; None without memory.

        Nothing is addressable before the caller says so with `blocks.publish`.
        """
        if not self.blocks.shares or len(tokens) >= self.max_context:
            return None
        sequence = Sequence(
            id=self._take_sequence_id(),
            request_id="",
            session=name,
            tokens=list(tokens),
            prompt_len=len(tokens),
            sampling=SamplingParams(max_tokens=1, seed=0),
            salt=salt,
        )
        self.blocks.admit(sequence, Match())
        if not self.blocks.grow(sequence, len(tokens)):
            self.blocks.release(sequence)
            return None
        self.sessions.keep(sequence)
        return list(sequence.table)

    def session_infos(self) -> list[SessionInfo]:
        """Every session the engine knows, least recently used first."""
        infos: dict[str, SessionInfo] = {}
        for name in self.sessions.names():
            session = self.sessions.get(name)
            assert session is not None
            resident = session.resident
            infos[name] = SessionInfo(
                session=name,
                state="resident" if resident else "remembered",
                tokens=resident.computed if resident else len(session.tokens or ()),
                blocks=len(resident.table) if resident else 0,
                pinned=session.pinned,
            )
        for sequence in [*self.scheduler.waiting, *self.scheduler.running]:
            known = infos.pop(sequence.session, None)
            infos[sequence.session] = SessionInfo(
                session=sequence.session,
                state="running" if sequence.table else "waiting",
                tokens=len(sequence.tokens),
                blocks=len(sequence.table),
                pinned=known.pinned if known else False,
                priority=sequence.priority,
            )
        return list(infos.values())

    # -- inside --------------------------------------------------------------------------------

    def _begin_compiled(self) -> None:
        """Queue, or refuse, the requests whose grammar needs no more waiting."""
        patience = 0.0 if self._requests or self._pending else _IDLE_PATIENCE
        for message, outcome in self._compiling.take(patience):
            dropped = self._dropped.pop(message.request_id, set())
            if isinstance(outcome, GrammarError):
                self._refuse(message, outcome.code, str(outcome), "grammar")
            else:
                self._begin(message, outcome)
                ended = [self.abort(message.request_id, index) for index in sorted(dropped)]
                self._pending += [output for output in ended if output is not None]

    def _refuse(self, message: AddRequest, code: ErrorCode, text: str, param: str | None = None) -> None:
        self._pending.append(
            TokenOutput(message.request_id, (), "error", len(message.prompt), 0, text, code, param=param)
        )

    @property
    def _runs_ahead(self) -> bool:
        """Whether the next step is launched before the last one is processed.

        Requests that cannot go on without their tokens sit out the steps between. Where they are most of what runs, it
        is better to have everybody in each step.
        """
        return 2 * len(self._dependent) <= len(self._requests)

    def _process(self, outputs: list[TokenOutput]) -> StepReport:
        """Take in the oldest step on its way: its tokens, and what they end."""
        launched, result, duration = self._steps.collect()
        step = launched.step
        for sequence, scores in zip(launched.scored, result.prompt_scores, strict=True):
            if not sequence.ended:
                output = self._requests[sequence.request_id].output((), sequence.index, None)
                outputs.append(msgspec.structs.replace(output, prompt_logprobs=tuple(scores)))
        generated = self._commit(launched, result, outputs) + self._advance_beams(launched, result, outputs)
        self._learn_costs(step, result, duration)
        reading = [span for span in step.spans if span.start < span.sequence.prompt_len]
        prompt_tokens = sum(min(span.count, span.sequence.prompt_len - span.start) for span in reading)
        return self._make_report(duration, prompt_tokens, self.scheduler.take_hit_tokens(), generated)

    def _commit(self, launched: Launched, result: StepResult, outputs: list[TokenOutput]) -> int:
        """Put the tokens in their places and end what is done. Returns how many were generated."""
        came: list[tuple[Sequence, int, int, TokenLogprobs | None]] = []
        logprobs = result.logprobs or itertools.repeat(None)
        for sample, token, logprob in zip(launched.samples, result.tokens, logprobs):  # noqa: B905 (repeat has no end)
            sequence, place = sample.sequence, sample.place
            if sequence.ended:
                continue
            if sample.promised:
                sequence.tokens[place] = token
                sequence.promised -= 1
            elif len(sequence.tokens) == place:
                sequence.tokens.append(token)
            else:  # preempted meanwhile and computed again: another step brought the token
                continue
            came.append((sequence, place, token, logprob))
        self.blocks.publish_late()
        for sequence, place, token, logprob in came:
            if not sequence.ended:  # with another of its request, that failed
                outputs.append(self._answer(sequence, token, place + 1, logprob))
        return len(came)

    def _advance_beams(self, launched: Launched, result: StepResult, outputs: list[TokenOutput]) -> int:
        """Go on with the searches of a step. Returns how many tokens their beams got."""
        best = iter(result.beams)
        generated = 0
        for group, preemptions in launched.groups:
            found = [next(best) for _ in group.beams]
            # One that was preempted meanwhile is computed again from where it stood.
            if not group.beams[0].ended and group.beams[0].preemptions == preemptions:
                generated += len(group.beams)
                outputs += self._advance(group, found)
        return generated

    def _is_full(self, sequence: Sequence, length: int) -> bool:
        """So long, it ends whatever its last token is."""
        return length - sequence.prompt_len >= sequence.sampling.max_tokens or length >= self.max_context

    def _forget(self, request: Request) -> None:
        """A request has ended."""
        del self._requests[request.message.request_id]
        self._dependent.discard(request.message.request_id)
        self.accounting.end(request.message)

    def _answer(
        self, sequence: Sequence, token: int, length: int, logprobs: TokenLogprobs | None = None
    ) -> TokenOutput:
        """What a token means that made the sequence `length` long: something to tell, perhaps the end."""
        request, sampling = self._requests[sequence.request_id], sequence.sampling
        if token == FAILED:
            words = "the model's logits are not finite here, so no next token can be chosen"
            return self._fail(sequence, "internal", words)
        grammar_ended = False
        if sequence.processor and (matcher := sequence.processor.matcher):
            grammar_ended = matcher.take(token)
            if matcher.error:
                words = f"the grammar cannot be followed further: {matcher.error}"
                return self._fail(sequence, "bad_request", words, "grammar")
        reason: FinishReason | None = None
        if grammar_ended or token in sampling.stop_token_ids:
            reason = "stop"
        elif self._is_full(sequence, length):
            reason = "length"
        elif sequence.index in request.dropped:
            reason = "abort"
        output = request.output((token,), sequence.index, reason)
        if length == sequence.prompt_len + 1:
            miss = request.miss(sequence, self.sessions.get(sequence.session), self.blocks.block_size)
            output = msgspec.structs.replace(output, miss=miss, prefill_s=time.monotonic() - sequence.admitted_at)
        if reason:
            sequence.drop_promises()  # of a step that did not know of the end
            self.scheduler.remove(sequence, keep=request.keeps(sequence))
            if request.finished(sequence):
                self._forget(request)
        if logprobs:
            output = msgspec.structs.replace(output, logprobs=(logprobs,))
        return output

    def _advance(self, group: BeamGroup, best: list[tuple[list[int], list[float]]]) -> list[TokenOutput]:
        """One step of a beam search: fork the beams that go on twice, release those that go on no more."""
        beams = group.beams
        request = self._requests[beams[0].request_id]
        choices = group.search.advance([beam.tokens[beam.prompt_len :] for beam in beams], best)
        if choices is None:
            for beam in beams:
                self.scheduler.remove(beam)
            self._forget(request)
            return request.beam_outputs(group.search, self.max_context)
        group.beams = []
        continued: set[int] = set()
        for parent, _ in choices:
            beam = beams[parent]
            if parent in continued:
                beam = self._fork_beam(beam)
            continued.add(parent)
            group.beams.append(beam)
        for beam, (_, token) in zip(group.beams, choices, strict=True):
            beam.tokens.append(token)
        for index, beam in enumerate(beams):
            if index not in continued:
                self.scheduler.remove(beam)
        request.sequences = list(group.beams)
        return []

    def _fork_beam(self, parent: Sequence) -> Sequence:
        child = Sequence(
            id=self._take_sequence_id(),
            request_id=parent.request_id,
            session=parent.session,
            tokens=list(parent.tokens),
            prompt_len=parent.prompt_len,
            sampling=parent.sampling,
            salt=parent.salt,
            priority=parent.priority,
            group=parent.group,
        )
        self.scheduler.fork(parent, child)
        return child

    def _sequence(self, message: AddRequest, index: int) -> Sequence:
        sampling = message.sampling
        if index:
            seed = (sampling.seed + index) % 2**63
            sampling = msgspec.structs.replace(sampling, seed=seed, prompt_logprobs=None)
        return Sequence(
            id=self._take_sequence_id(),
            request_id=message.request_id,
            session=message.session,
            tokens=list(message.prompt),
            prompt_len=len(message.prompt),
            sampling=sampling,
            salt=message.salt,
            index=index,
            priority=message.priority,
        )

    def _take_sequence_id(self) -> int:
        self._next_sequence += 1
        return self._next_sequence - 1

    def _fail(self, sequence: Sequence, code: ErrorCode, text: str, param: str | None = None) -> TokenOutput:
        """End a request that cannot go on."""
        request = self._requests[sequence.request_id]
        for other in request.living():
            self.scheduler.remove(other)
        self._forget(request)
        output = request.output((), sequence.index, "error")
        return msgspec.structs.replace(output, message=text, code=code, param=param)

    def _fail_for_memory(self, sequence: Sequence) -> TokenOutput:
        """It cannot fit beside what is pinned."""
        pool, pinned = self.blocks.pool, self.sessions.pinned_blocks
        text = (
            f"the request needs more blocks than it can ever get: {len(sequence.tokens)} tokens so far, "
            f"{pool.available} of {pool.num_blocks} blocks of {self.blocks.block_size} available"
            + (f", {pinned} held by pinned sessions" if pinned else "")
        )
        return self._fail(sequence, "busy" if pinned else "too_long", text)

    def _learn_costs(self, step: Step, result: StepResult, duration: float) -> None:
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
            shadows=self.accounting.apply(events, self.scheduler.running),
        )
