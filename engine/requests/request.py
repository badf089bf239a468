"""A request: what a client asked, the sequences that answer it, and what goes back."""

from __future__ import annotations

from engine.protocol import AddRequest, CacheMiss, FinishReason, TokenOutput
from engine.requests.beams import BeamGroup, BeamSearch
from engine.requests.sequence import Sequence, common_prefix
from engine.sessions.residents import Session


class Request:
    """The sequences of one request, until the last of them has finished."""

    def __init__(self, message: AddRequest, sequences: list[Sequence], group: BeamGroup | None) -> None:
        self.message = message
        self.sequences = sequences
        self.group = group
        self._first = sequences[0]
        self._prompt_tokens = len(message.prompt)
        self._finished: set[int] = set()
        self.dropped: set[int] = set()
        """Answers that nobody wants, but which have still to fork the others from their prompt."""

    def living(self) -> list[Sequence]:
        """Sequences that have not finished."""
        return [sequence for sequence in self.sequences if sequence.index not in self._finished or self.group]

    def finished(self, sequence: Sequence) -> bool:
        """Note that a sequence has finished. True when it was the last."""
        self._finished.add(sequence.index)
        return len(self._finished) == len(self.sequences)

    def keeps(self, sequence: Sequence) -> bool:
        """True when the sequence stays for its session's next turn: the first answer of a request that asks for it."""
        return self.message.keep and sequence is self._first and self.group is None

    def output(self, tokens: tuple[int, ...], index: int, reason: FinishReason | None) -> TokenOutput:
        return TokenOutput(
            self.message.request_id,
            tokens,
            reason,
            self._prompt_tokens,
            self._first.cached_tokens,
            index=index,
        )

    def beam_outputs(self, search: BeamSearch, max_context: int) -> list[TokenOutput]:
        """The n best finished beams, whole."""
        outputs = []
        for index, beam in enumerate(search.finished[: self.message.n]):
            stopped = beam.tokens[-1] in self.message.sampling.stop_token_ids
            outputs.append(
                TokenOutput(
                    self.message.request_id,
                    tuple(beam.tokens),
                    "stop" if stopped else "length",
                    self._prompt_tokens,
                    self._first.cached_tokens,
                    index=index,
                    score=beam.score,
                )
            )
        return outputs

    def miss(self, sequence: Sequence, session: Session | None, block_size: int) -> CacheMiss | None:
        """Why this turn could not reuse all of the session's last one: to be told with the first answer's first token,
        while the session's tokens are still those of that turn."""
        if sequence is not self._first or session is None or session.tokens is None:
            return None
        if self.message.sampling.prompt_logprobs is not None:  # it asked for all of the prompt to be computed
            return None
        before, prompt = session.tokens, self.message.prompt
        common = common_prefix(before, list(prompt))
        reusable = min(common, len(prompt) - 1)
        if sequence.cached_tokens < reusable // block_size * block_size:
            return CacheMiss(reason="evicted", position=sequence.cached_tokens)
        if common < min(len(before), len(prompt)):
            return CacheMiss(reason="diverged", position=common, expected=before[common], found=prompt[common])
        return None
