"""An executor without a model that knows what every KV slot must hold, and complains when one does not."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.core import EngineCore
from engine.execution.step_input import UNKNOWN, StepInput, StepResult, decode_step, encode_step
from engine.execution.tables import TableRows, check_step
from engine.protocol import AddRequest, BeamParams, SamplingParams, StepReport, TokenOutput
from engine.requests.beams import BeamSearch

VOCAB = 50
NO_KV = (0, 0, 0)


class ContentExecutor:
    """The reference runner: no model, but KV as real KV depends on tokens, read back through the block tables.

    Each slot holds (digest of the tokens before it, token, digest with it). A block shared too early, copied too late,
    evicted while owned or written by two sequences breaks the chain, or shows in the answer, which is made from it.
    It knows what a StepInput says, and nothing else: each comes to it as bytes.
    """

    depth = 1
    compilations = 0

    def __init__(self, num_blocks: int, block_size: int, host_slots: int = 0) -> None:
        self.block_size = block_size
        self.slots = [[NO_KV] * block_size for _ in range(num_blocks + 1)]
        self.host = [[NO_KV] * block_size for _ in range(host_slots)]
        self.tables = TableRows()
        self.computed = 0
        self.moved = 0
        self._launched: deque[StepInput] = deque()

    def launch(self, step: StepInput) -> None:
        assert len(self._launched) < self.depth
        self._launched.append(decode_step(encode_step(step)))

    def collect(self) -> StepResult:
        return self.execute(self._launched.popleft())

    def execute(self, step: StepInput) -> StepResult:
        self.tables.apply(step)
        tables = self.tables.tables(step, self.block_size)
        check_step(step, tables, self.block_size, len(self.slots) - 1, 2**31)
        self._move(step)
        firsts, starts, counts = step.firsts.tolist(), step.starts.tolist(), step.counts.tolist()
        for table, first, start, count in zip(tables, firsts, starts, counts, strict=True):
            digest = self._slot(table, start - 1)[2] if start else 1
            for offset, token in enumerate(step.token_ids[first : first + count].tolist()):
                assert token >= 0
                block, slot = divmod(start + offset, self.block_size)
                longer = add_token(digest, token)
                self.slots[table[block]][slot] = digest, token, longer
                digest = longer
        self.computed += sum(counts)
        ends = (step.starts + step.counts).tolist()
        contents = [self._read(table, end) for table, end in zip(tables, ends, strict=True)]
        tokens = [
            next_token(contents[place], int(settings["seed"]))
            for place, settings in zip(step.sampled.tolist(), step.settings, strict=True)
        ]
        beams = [best_tokens(contents[place], count) for place, count in step.beams]
        return StepResult(tokens=tokens, beams=beams, swap_s=1e-6 * (len(step.swap_out) + len(step.swap_in)))

    def _move(self, step: StepInput) -> None:
        for block, slot in step.swap_out.tolist():
            self.host[slot] = list(self.slots[block])
        contents = [list(self.slots[source]) for source in step.copies[:, 0].tolist()]
        for destination, content in zip(step.copies[:, 1].tolist(), contents, strict=True):
            self.slots[destination] = content
        for slot, block in step.swap_in.tolist():
            self.slots[block] = list(self.host[slot])
        self.moved += len(step.swap_out) + len(step.swap_in)

    def _slot(self, table: list[int], position: int) -> tuple[int, int, int]:
        block, slot = divmod(position, self.block_size)
        return self.slots[table[block]][slot]

    def _read(self, table: list[int], length: int) -> int:
        """What the first `length` slots hold, as one number."""
        before = 1
        for position in range(length):
            previous, token, digest = self._slot(table, position)
            assert previous == before, f"foreign KV at position {position}"
            assert digest == add_token(previous, token)
            before = digest
        return before


class AheadExecutor(ContentExecutor):
    """As a device that feeds each step's tokens to the next one by itself: they are handed over a step late."""

    depth = 2

    def __init__(self, num_blocks: int, block_size: int, host_slots: int = 0) -> None:
        super().__init__(num_blocks, block_size, host_slots)
        self._newest: dict[int, int] = {}
        self._results: deque[StepResult] = deque()

    def launch(self, step: StepInput) -> None:
        assert len(self._results) < self.depth
        step = decode_step(encode_step(step))
        ids = step.token_ids.copy()
        unknown = np.flatnonzero(ids == UNKNOWN).tolist()
        owners = np.repeat(step.rows, step.counts)
        for place in unknown:
            ids[place] = self._newest[int(owners[place])]
        result = self.execute(dataclasses.replace(step, token_ids=ids))
        self._newest.update(zip(step.sample_rows.tolist(), result.tokens, strict=True))
        self._results.append(result)

    def collect(self) -> StepResult:
        return self._results.popleft()


def add_token(digest: int, token: int) -> int:
    """The digest of a longer prefix."""
    return (digest * 1_000_003 + token + 1) % (2**61 - 1)


def prefix_digests(tokens: list[int]) -> list[int]:
    digests, digest = [], 1
    for token in tokens:
        digest = add_token(digest, token)
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


def make_core(
    num_blocks: int,
    block_size: int = 4,
    ahead: bool = False,
    executor: ContentExecutor | None = None,
    **settings: Any,
) -> EngineCore:
    options = {"max_context": 10**6, "vocab_size": VOCAB, **settings}
    make = AheadExecutor if ahead else ContentExecutor
    executor = executor or make(num_blocks, block_size, int(settings.get("host_slots", 0)))
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
