"""The requests that an engine serves: how they begin, wait for their grammar, change their priority, and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from engine.blocks.observe.accounting import Accounting
from engine.protocol import AddRequest, ErrorCode, TokenOutput
from engine.requests.beams import BeamSearch
from engine.requests.limits import Limits
from engine.requests.request import Request
from engine.requests.sequence import BeamGroup, Sequence
from engine.sampling.grammar.errors import GrammarError
from engine.sampling.grammar.queue import GrammarQueue
from engine.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from engine.sampling.grammar.compile import GrammarCompiler
    from engine.sampling.grammar.matcher import Matcher

_IDLE_PATIENCE = 0.005
"""Seconds a step waits for a grammar when nothing else is there to do."""


class Requests:
    """Those that have begun and not ended, and those whose grammar is being compiled."""

    def __init__(
        self,
        limits: Limits,
        scheduler: Scheduler,
        accounting: Accounting,
        grammars: GrammarCompiler | None,
        next_sequence_id: Callable[[], int],
    ) -> None:
        self._limits = limits
        self._scheduler = scheduler
        self._accounting = accounting
        self._compiling = GrammarQueue(grammars)
        self._next_sequence_id = next_sequence_id
        self._live: dict[str, Request] = {}
        self._waiting_for_tokens: set[str] = set()
        """Requests whose next step needs the tokens of the last one here."""
        self._pending: list[TokenOutput] = []
        """These outputs are told with the next step."""
        self._dropped: dict[str, set[int]] = {}
        """Answers that were aborted while their request's grammar was being compiled."""

    def __bool__(self) -> bool:
        return bool(self._live or self._pending or self._compiling)

    def of(self, sequence: Sequence) -> Request:
        """The request that a sequence answers."""
        return self._live[sequence.request_id]

    def sequences(self) -> list[Sequence]:
        """Those of all requests that have begun."""
        return [sequence for request in self._live.values() for sequence in request.sequences]

    @property
    def mostly_wait_for_tokens(self) -> bool:
        """True where most requests cannot go on before their last token is known here."""
        return 2 * len(self._waiting_for_tokens) > len(self._live)

    # -- beginning -----------------------------------------------------------------------------

    def add(self, message: AddRequest) -> None:
        """Begin a request, now or when its grammar is compiled. One that can never be served is refused in the next
        step's outputs, with the numbers."""
        refusal = self._limits.refusal(message)
        if message.request_id in self._live or message.request_id in self._compiling:
            self._refuse(message, "bad_request", f"request id {message.request_id!r} is in use")
        elif refusal:
            self._refuse(message, *refusal)
        elif message.sampling.grammar:
            self._compiling.add(message, message.sampling.grammar)
        else:
            self._begin(message)

    def begin_compiled(self) -> None:
        """Begin, or refuse, those whose grammar needs no more waiting."""
        patience = 0.0 if self._live or self._pending else _IDLE_PATIENCE
        for message, outcome in self._compiling.take(patience):
            dropped = self._dropped.pop(message.request_id, set())
            if isinstance(outcome, GrammarError):
                self._refuse(message, outcome.code, str(outcome), "grammar")
            else:
                self._begin(message, outcome)
                ended = [self.abort(message.request_id, index) for index in sorted(dropped)]
                self._pending += [output for output in ended if output is not None]

    def take_pending(self) -> list[TokenOutput]:
        """The outputs that have come up since the last call: refusals, and ends that came of other ends."""
        pending, self._pending = self._pending, []
        return pending

    def _begin(self, message: AddRequest, matcher: Matcher | None = None) -> None:
        sequences = [self._sequence(message, index) for index in range(1 if message.beam else message.n)]
        for sequence in sequences:
            if matcher and sequence.processor:
                sequence.processor.matcher = matcher.fork()
        first = sequences[0]
        group = None
        if message.beam:
            room = self._limits.max_context - len(message.prompt)
            most = min(message.sampling.max_tokens, room)
            group = first.group = BeamGroup(BeamSearch(message.beam, message.sampling.stop_token_ids, most), [first])
        queued = [first]
        if self._limits.shares:
            first.children = sequences[1:]
        else:
            queued = sequences
        self._live[message.request_id] = Request(message, sequences, group)
        if not all(sequence.runs_ahead for sequence in sequences):
            self._waiting_for_tokens.add(message.request_id)
        self._accounting.begin(message)
        for sequence in queued:
            self._scheduler.add(sequence)

    def _sequence(self, message: AddRequest, index: int) -> Sequence:
        sampling = message.sampling
        if index:
            seed = (sampling.seed + index) % 2**63
            sampling = msgspec.structs.replace(sampling, seed=seed, prompt_logprobs=None)
        return Sequence(
            id=self._next_sequence_id(),
            request_id=message.request_id,
            session=message.session,
            tokens=list(message.prompt),
            prompt_len=len(message.prompt),
            sampling=sampling,
            salt=message.salt,
            index=index,
            priority=message.priority,
        )

    def _refuse(self, message: AddRequest, code: ErrorCode, text: str, param: str | None = None) -> None:
        self._pending.append(
            TokenOutput(message.request_id, (), "error", len(message.prompt), 0, text, code, param=param)
        )

    # -- changing and ending -------------------------------------------------------------------

    def set_priority(self, request_id: str, priority: int) -> None:
        """From now on the request is served as if it had come with this priority. Nothing when there is no such
        request (it may just have finished)."""
        self._compiling.set_priority(request_id, priority)
        request = self._live.get(request_id)
        if request is not None:
            for sequence in request.sequences:
                sequence.priority = priority
            self._scheduler.reorder()

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
        request = self._live.get(request_id)
        if request is None:
            return None
        if index is not None:
            return self._abort_one(request, index)
        for sequence in request.living():
            self.end(sequence, request)
        self.forget(request)
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
        self.end(sequence, request)
        if request.finished(sequence):
            self.forget(request)
        for waits in [one for one in request.living() if one.index in request.dropped and not one.children]:
            if (output := self._abort_one(request, waits.index)) is not None:
                self._pending.append(output)
        return request.output((), index, "abort")

    def fail(self, sequence: Sequence, code: ErrorCode, text: str, param: str | None = None) -> TokenOutput:
        """End the request of a sequence that cannot go on."""
        request = self.of(sequence)
        for other in request.living():
            self._scheduler.remove(other)
        self.forget(request)
        output = request.output((), sequence.index, "error")
        return msgspec.structs.replace(output, message=text, code=code, param=param)

    def end(self, sequence: Sequence, request: Request) -> None:
        """Take a sequence out for good. Its blocks go back, or stay for its session's next turn."""
        sequence.drop_promises()  # of a step that does not know of the end
        self._scheduler.remove(sequence, keep=request.keeps(sequence))

    def forget(self, request: Request) -> None:
        """A request has ended."""
        del self._live[request.message.request_id]
        self._waiting_for_tokens.discard(request.message.request_id)
        self._accounting.end(request.message)
