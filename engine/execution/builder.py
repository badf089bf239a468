"""From what the scheduler decided to what a runner is told: live sequences in, a StepInput out.

Gives each sequence a row of the runner's, and tells of its block table what the runner does not know yet.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from engine.execution.step_input import SAMPLING, Ints, LogitsEdit, PromptScores, StepInput
from engine.protocol import SamplingParams
from engine.requests.sequence import Sequence
from engine.scheduling.step import ScheduledStep, ScheduledTokens

_LEAST_TOP_P = 2.0**-24
"""Less leaves the most likely token alone, as this does with any vocabulary; and float32 holds it."""


class StepBuilder:
    """The rows of one runner, and what it knows of the block tables in them.

    A sequence keeps its row until more than `rows` others have been in a step since: then the row goes to one of
    these, and the sequence gets another with its next step.
    """

    def __init__(self, rows: int, block_size: int, vocab_size: int) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._rows: OrderedDict[int, int] = OrderedDict()  # sequence id -> row, least recently used first
        self._free = list(range(rows))[::-1]
        self._params: list[SamplingParams | None] = [None] * rows
        """The parameters that `_settings` was filled from, by row. A session's next turn comes in the row of the turn
        before, so they are compared in each step."""
        self._settings = np.zeros(rows, SAMPLING)

    def sequence_in(self, row: int) -> int | None:
        """The id of the sequence in a row. O(rows): for fakes and for a look at what goes wrong."""
        return next((sequence for sequence, its_row in self._rows.items() if its_row == row), None)

    def build(self, step: ScheduledStep) -> StepInput:
        """What a runner has to know of the step. Call once a step, in the order in which steps are launched."""
        size, get, touch, params = self._block_size, self._rows.get, self._rows.move_to_end, self._params
        patches: list[tuple[int, int, int]] = []
        rows: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        ids: list[int] = []
        sampled: list[int] = []
        sample_rows: list[int] = []
        wanting: list[tuple[int, Sequence]] = []  # samples that want more than a token
        beams: list[tuple[int, int]] = []
        scores: list[PromptScores] = []
        for place, span in enumerate(step.spans):
            sequence, start, count = span.sequence, span.start, span.count
            tokens, end = sequence.tokens, start + count
            row = get(sequence.id, -1)
            if row < 0 or params[row] is not sequence.sampling:
                row = self._take(sequence)
            else:
                touch(sequence.id)
            if sequence.sent * size < end:
                self._tell_table(sequence, row, -(-end // size), patches)
            rows.append(row)
            starts.append(start)
            counts.append(count)
            if count == 1:
                ids.append(tokens[start])
            else:
                ids += tokens[start:end]
            if end == len(tokens):
                if sequence.group is not None:
                    beams.append((place, sequence.group.search.candidates))
                else:
                    if not sequence.plain:
                        wanting.append((len(sampled), sequence))
                    sampled.append(place)
                    sample_rows.append(row)
                    if span.forks:
                        self._add_forks(span, place, sampled, sample_rows, wanting)
            if not sequence.plain and sequence.scores_prompt:
                scores += self._prompt_scores(span, place)
        of_samples = np.array(sample_rows, np.int32)
        logprobs = np.full(len(sampled), -1, np.int32)
        edits = []
        for sample, sequence in wanting:
            if sequence.sampling.logprobs is not None:
                logprobs[sample] = sequence.sampling.logprobs
            if sequence.processor is not None:
                edits.append(self._edit(sample, sequence))
        return StepInput(
            number=step.number,
            rows=np.array(rows, np.int32),
            starts=np.array(starts, np.int32),
            counts=np.array(counts, np.int32),
            token_ids=np.array(ids, np.int32),
            patches=np.array(patches, np.int32).reshape(-1, 3),
            swap_out=_pairs(step.swap_out),
            copies=_pairs(step.copies),
            swap_in=_pairs(step.swap_in),
            sampled=np.array(sampled, np.int32),
            sample_rows=of_samples,
            settings=self._settings[of_samples],
            logprobs=logprobs,
            edits=tuple(edits),
            beams=tuple(beams),
            prompt_scores=tuple(scores),
        )

    # -- inside ------------------------------------------------------------------------------------

    def _add_forks(
        self,
        span: ScheduledTokens,
        place: int,
        sampled: list[int],
        sample_rows: list[int],
        wanting: list[tuple[int, Sequence]],
    ) -> None:
        for fork in span.forks:
            if not fork.plain:
                wanting.append((len(sampled), fork))
            sampled.append(place)
            sample_rows.append(self._take(fork))

    def _take(self, sequence: Sequence) -> int:
        """A row for the sequence: its own, with other settings, or a free one, or the one unused for longest."""
        row = self._rows.pop(sequence.id, -1)
        if row < 0:
            row = self._free.pop() if self._free else self._rows.popitem(last=False)[1]
            sequence.sent = 0
        self._rows[sequence.id] = row
        p = self._params[row] = sequence.sampling
        self._settings[row] = (p.temperature, max(p.top_p, _LEAST_TOP_P), p.min_p, p.top_k, p.seed)
        return row

    def _tell_table(self, sequence: Sequence, row: int, blocks: int, patches: list[tuple[int, int, int]]) -> None:
        table = sequence.table
        patches += [(row, index, table[index]) for index in range(sequence.sent, blocks)]
        sequence.sent = blocks

    def _edit(self, sample: int, sequence: Sequence) -> LogitsEdit:
        assert sequence.processor is not None
        assert sequence.promised <= 1, "a runner knows one token that is unknown here"
        processor, params = sequence.processor, sequence.sampling
        tokens, counts = processor.seen_tokens(sequence.tokens, sequence.known)
        return LogitsEdit(
            sample=sample,
            tokens=tokens,
            counts=counts,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            newest_unknown=processor.penalises and sequence.promised > 0,
            bias_tokens=processor.bias_tokens,
            bias_values=processor.bias_values,
            mask=processor.mask(sequence.generated, self._vocab_size),
        )

    def _prompt_scores(self, span: ScheduledTokens, place: int) -> list[PromptScores]:
        """The prompt tokens behind those of the span; they count as scored from now on."""
        sequence, count = span.sequence, span.sequence.sampling.prompt_logprobs
        assert count is not None
        start, end = sequence.scored, min(span.start + span.count, sequence.prompt_len - 1)
        if end <= start:
            return []
        sequence.scored = end
        following = np.array(sequence.tokens[start + 1 : end + 1], np.int32)
        return [PromptScores(place, start - span.start, following, count)]


def _pairs(pairs: list[tuple[int, int]]) -> Ints:
    return np.array(pairs, np.int32).reshape(-1, 2)
