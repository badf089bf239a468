"""An executor without a model that knows what every KV slot must hold, and complains when one does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from engine.core import EngineCore
from engine.protocol import AddRequest, BeamParams, SamplingParams, StepReport, TokenOutput
from engine.requests.beams import BeamSearch
from engine.requests.sequence import UNKNOWN, Span, Step, StepResult

VOCAB = 50


class ContentExecutor:
    """Stores in each slot a digest of all tokens up to it, as real KV depends on them, and reads it back.

    A block shared too early, copied too late, evicted while owned or written by two sequences shows
    as a digest that is not the reader's own.
    """

    def __init__(self, num_blocks: int, block_size: int, host_slots: int = 0) -> None:
        self.block_size = block_size
        self.slots = [[0] * block_size for _ in range(num_blocks + 1)]
        self.host = [[0] * block_size for _ in range(host_slots)]
        self.computed = 0
        self.moved = 0

    def execute(self, step: Step) -> StepResult:
        self._move(step)
        for span in step.spans:
            digests = prefix_digests(span.sequence.tokens)
            self.computed += span.count
            for position in range(span.start, span.start + span.count):
                block, offset = divmod(position, self.block_size)
                self.slots[span.sequence.table[block]][offset] = digests[position]
        tokens: list[int] = []
        top: dict[int, tuple[list[int], list[float]]] = {}
        for span in step.spans:
            digests = prefix_digests(span.sequence.tokens)
            self._read(span, digests)
            if span.samples and span.sequence.group:
                top[span.sequence.id] = best_tokens(digests[-1], span.sequence.group.search.candidates)
            elif span.samples:
                tokens += [next_token(digests[-1], s.sampling.seed) for s in (span.sequence, *span.forks)]
        return StepResult(tokens, top, swap_s=1e-6 * (len(step.swap_out) + len(step.swap_in)))

    def _move(self, step: Step) -> None:
        for block, slot in step.swap_out:
            self.host[slot] = list(self.slots[block])
        contents = [list(self.slots[source]) for source, _ in step.copies]
        for (_, destination), content in zip(step.copies, contents, strict=True):
            self.slots[destination] = content
        for slot, block in step.swap_in:
            self.slots[block] = list(self.host[slot])
        self.moved += len(step.swap_out) + len(step.swap_in)

    def _read(self, span: Span, digests: list[int]) -> None:
        for position in range(span.start + span.count):
            block, offset = divmod(position, self.block_size)
            assert self.slots[span.sequence.table[block]][offset] == digests[position], (
                f"sequence {span.sequence.id} reads foreign KV at {position}"
            )


class AheadExecutor(ContentExecutor):
    """As a device that feeds each step's tokens to the next one by itself: they are handed over a step late."""

    depth = 2

    def __init__(self, num_blocks: int, block_size: int, host_slots: int = 0) -> None:
        super().__init__(num_blocks, block_size, host_slots)
        self._newest: dict[int, int] = {}
        self._results: deque[StepResult] = deque()

    def launch(self, step: Step) -> None:
        there = {span.sequence: span.sequence.tokens for span in step.spans if span.sequence.tokens[-1] == UNKNOWN}
        for sequence, tokens in there.items():
            sequence.tokens = [*tokens[:-1], self._newest[sequence.id]]
        result = self.execute(step)
        for sequence, tokens in there.items():
            sequence.tokens = tokens
        samplers = [s for span in step.spans if span.samples for s in (span.sequence, *span.forks) if s.group is None]
        self._newest.update({s.id: token for s, token in zip(samplers, result.tokens, strict=True)})
        self._results.append(result)

    def collect(self) -> StepResult:
        return self._results.popleft()


def prefix_digests(tokens: list[int]) -> list[int]:
    digests, digest = [], 1
    for token in tokens:
        digest = (digest * 1_000_003 + token + 1) % (2**61 - 1)
        digests.append(digest)
    return digests


def next_token(digest: int, seed: int = 0) -> int:
    """What the "model" says after a prefix: any function of the whole prefix and the seed."""
    return ((digest >> 7) + 7919 * seed) % VOCAB


def best_tokens(digest: int, count: int) -> tuple[list[int], list[float]]:
    """The `count` most likely tokens after a prefix, with log probabilities that differ."""
    ranked = sorted(range(VOCAB), key=lambda token: (digest * (token + 3)) % 1009)
    return ranked[:count], [-0.3 - 0.37 * rank - (digest % 97) / 1000 for rank in range(count)]


def expected_answer(
    prompt: list[int], max_tokens: int, stop: tuple[int, ...] = (), context: int = 10**9, seed: int = 0
) -> list[int]:
    """The tokens an engine with endless memory would give."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(prefix_digests(tokens)[-1], seed))
        if tokens[-1] in stop or len(tokens) - len(prompt) >= max_tokens or len(tokens) >= context:
            return tokens[len(prompt) :]


def expected_beams(prompt: list[int], max_tokens: int, beam: BeamParams, stop: tuple[int, ...]) -> list[list[int]]:
    """The beams an engine with endless memory would give: the search driven by hand, without any block."""
    search = BeamSearch(beam, stop, max_tokens)
    answers: list[list[int]] = [[]]
    while True:
        top = [best_tokens(prefix_digests([*prompt, *answer])[-1], search.candidates) for answer in answers]
        choices = search.advance(answers, top)
        if choices is None:
            return [hypothesis.tokens for hypothesis in search.finished]
        answers = [[*answers[parent], token] for parent, token in choices]


def make_core(num_blocks: int, block_size: int = 4, ahead: bool = False, **settings: int | bool | str) -> EngineCore:
    options = {"max_context": 10**6, "vocab_size": VOCAB, **settings}
    make = AheadExecutor if ahead else ContentExecutor
    executor = make(num_blocks, block_size, int(settings.get("host_slots", 0)))
    return EngineCore(executor, num_blocks=num_blocks, block_size=block_size, **options)  # type: ignore[arg-type]


def request(name: str, prompt: list[int], max_tokens: int = 8, stop: tuple[int, ...] = (), **more: Any) -> AddRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, seed=0, stop_token_ids=stop)
    options = {"session": f"chat-{name}", **more}
    return AddRequest(request_id=name, prompt=tuple(prompt), sampling=sampling, **options)


def run(
    core: EngineCore, limit: int = 100_000, watch: Callable[[StepReport], None] = lambda report: None
) -> dict[str, list[TokenOutput]]:
    """Step until nothing is left to do; the outputs of each request. `watch` sees the reports."""
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(limit):
        if not core.has_work:
            return outputs
        new, report = core.step()
        if report:
            watch(report)
        for output in new:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError(f"still working after {limit} steps")


def tokens_of(outputs: list[TokenOutput], index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.tokens]
