"""From the results of a step to what clients are told: tokens put in their places, ends found, searches advanced."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import msgspec

from engine.blocks.observe.accounting import Accounting
from engine.blocks.tables import BlockTables
from engine.execution.step_input import FAILED, StepResult
from engine.protocol import FinishReason, TokenLogprobs, TokenOutput
from engine.requests.live import Requests
from engine.requests.sequence import BeamGroup, Sequence
from engine.scheduling.async_steps import Launched
from engine.scheduling.scheduler import Scheduler
from engine.sessions.residents import Sessions


class OutputProcessor:
    """Takes in steps, in the order in which they were launched."""

    def __init__(
        self,
        requests: Requests,
        scheduler: Scheduler,
        blocks: BlockTables,
        sessions: Sessions,
        accounting: Accounting,
        max_context: int,
        next_sequence_id: Callable[[], int],
    ) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._blocks = blocks
        self._sessions = sessions
        self._accounting = accounting
        self._max_context = max_context
        self._next_sequence_id = next_sequence_id

    def process(self, launched: Launched, result: StepResult) -> tuple[list[TokenOutput], int]:
        """(what to tell, how many tokens were generated) of a step and its result."""
        outputs = []
        for sequence, scores in zip(launched.scored, result.prompt_scores, strict=True):
            if not sequence.ended:
                output = self._requests.of(sequence).output((), sequence.index, None)
                outputs.append(msgspec.structs.replace(output, prompt_logprobs=tuple(scores)))
        generated = self._commit(launched, result, outputs) + self._advance_beams(launched, result, outputs)
        return outputs, generated

    def is_full(self, sequence: Sequence, length: int) -> bool:
        """Whether the sequence ends when it is so long, whatever its last token is."""
        return length - sequence.prompt_len >= sequence.sampling.max_tokens or length >= self._max_context

    def _commit(self, launched: Launched, result: StepResult, outputs: list[TokenOutput]) -> int:
        """Put the tokens in their places and end what is done. Returns how many were told."""
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
        self._blocks.publish_late()
        told = 0
        for sequence, place, token, logprob in came:
            if not sequence.ended:  # with another of its request, that failed
                output = self._answer(sequence, token, place + 1, logprob)
                outputs.append(output)
                if output.tokens:
                    told += 1
                    self._accounting.saw_tokens(sequence.session, 1)
        return told

    def _answer(self, sequence: Sequence, token: int, length: int, logprobs: TokenLogprobs | None) -> TokenOutput:
        """What a token means that made the sequence `length` long: something to tell, perhaps the end."""
        request, sampling = self._requests.of(sequence), sequence.sampling
        if token == FAILED:
            words = "the model's logits are not finite here, so no next token can be chosen"
            return self._requests.fail(sequence, "internal", words)
        grammar_ended = False
        if sequence.processor and (matcher := sequence.processor.matcher):
            grammar_ended = matcher.take(token)
            if matcher.error:
                words = f"the grammar cannot be followed further: {matcher.error}"
                return self._requests.fail(sequence, "bad_request", words, "grammar")
        reason: FinishReason | None = None
        if grammar_ended or token in sampling.stop_token_ids:
            reason = "stop"
        elif self.is_full(sequence, length):
            reason = "length"
        elif sequence.index in request.dropped:
            reason = "abort"
        output = request.output((token,), sequence.index, reason)
        if length == sequence.prompt_len + 1:
            miss = request.miss(sequence, self._sessions.get(sequence.session), self._blocks.block_size)
            output = msgspec.structs.replace(output, miss=miss, prefill_s=time.monotonic() - sequence.admitted_at)
        if reason:
            self._requests.end(sequence, request)
            if request.finished(sequence):
                self._requests.forget(request)
        if logprobs:
            output = msgspec.structs.replace(output, logprobs=(logprobs,))
        return output

    # -- beams ---------------------------------------------------------------------------------

    def _advance_beams(self, launched: Launched, result: StepResult, outputs: list[TokenOutput]) -> int:
        """Go on with the searches of a step. Returns how many tokens their beams got."""
        best = iter(result.beams)
        generated = 0
        for group, preemptions in launched.groups:
            found = [next(best) for _ in group.beams]
            # One that was preempted meanwhile is computed again from where it stood.
            if not group.beams[0].ended and group.beams[0].preemptions == preemptions:
                generated += len(group.beams)
                self._accounting.saw_tokens(group.beams[0].session, len(group.beams))
                outputs += self._advance(group, found)
        return generated

    def _advance(self, group: BeamGroup, best: list[tuple[list[int], list[float]]]) -> list[TokenOutput]:
        """One step of a beam search: fork the beams that go on twice, release those that go on no more."""
        beams = group.beams
        request = self._requests.of(beams[0])
        choices = group.search.advance([beam.tokens[beam.prompt_len :] for beam in beams], best)
        if choices is None:
            for beam in beams:
                self._scheduler.remove(beam)
            self._requests.forget(request)
            return request.beam_outputs(group.search, self._max_context)
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
                self._scheduler.remove(beam)
        request.sequences = list(group.beams)
        return []

    def _fork_beam(self, parent: Sequence) -> Sequence:
        child = Sequence(
            id=self._next_sequence_id(),
            request_id=parent.request_id,
            session=parent.session,
            tokens=list(parent.tokens),
            prompt_len=parent.prompt_len,
            sampling=parent.sampling,
            salt=parent.salt,
            priority=parent.priority,
            group=parent.group,
        )
        self._scheduler.fork(parent, child)
        return child
