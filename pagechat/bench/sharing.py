"""Memory that several answers to one prompt share: parallel samples and beams, in the engine's own core.

No model computes: sampled tokens are random, so samples part at once; beams get next tokens from `Guesses`.
The figure is that of the PagedAttention paper (SOSP 2023), section 6.3: the table entries that are not a block of
their own, over all table entries; here its mean over the steps of all requests.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import msgspec

from engine.core import EngineCore
from engine.execution.step_input import StepInput, StepResult
from engine.protocol import AddRequest, BeamParams, SamplingParams
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.parallel import run_parallel
from pagechat.bench.traces import Trace, draw

PAPER = {
    ("parallel", "alpaca-like"): (0.0609, 0.0853, 0.0979),
    ("parallel", "sharegpt-like"): (0.162, None, 0.305),
    ("beam", "alpaca-like"): (0.3756, 0.5313, 0.5516),
    ("beam", "sharegpt-like"): (0.443, None, 0.663),
}
"""Memory saved with 2, 4 and 6 answers, in the paper's Figure 15 and section 6.3; ShareGPT as a range only."""

ANSWERS = (2, 4, 6)
_REQUESTS = 60
_BLOCK_SIZE = 16
_VOCABULARY = 1 << 30


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    """parallel or beam."""
    lengths: str
    answers: int
    saved: float
    """Share of table entries that need no block of their own, 0..1."""
    paper: float | None
    copies_per_token: float
    """Blocks copied on write, over tokens generated."""


class SharingStudy(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `simulate --sharing --json`."""

    block_size: int
    requests: int
    """Of each row."""
    rows: list[Shared]
    machine: Machine


_FIRST = (0.193, 0.336, 0.482, 0.624, 0.784, 0.915, 0.969, 0.989, 0.996, 0.9995)
"""Probability of the likeliest next token: middles of the ten tenths seen with SmolLM2-135M-Instruct under beam
search (widths 2, 4 and 6; three chat prompts, 161 + 338 and 19 + 58 tokens; 18 runs of the real engine)."""

_REST = 0.36
"""What each further token takes of the probability that is left: the second one's mean there. In those runs the
real model's beams shared 47, 70 and 78 % of their table entries with 161 + 338 tokens, 39, 56 and 62 % with 19 + 58."""


class Guesses:
    """Executes steps without a model.

    Samples are random tokens, so parallel answers part at their first. Beams get next tokens as uncertain as a small
    chat model's (`_FIRST`, `_REST`), drawn for each beam and position on its own: only their scores tie beams together.
    """

    depth = 1
    compilations = 0

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (a model's guesses, no secrets)
        self.copies = 0

    def launch(self, step: StepInput) -> None:
        """There is nothing to compute."""
        self._step = step
        self.copies += len(step.copies)

    def collect(self) -> StepResult:
        """Any tokens for what samples, ranked ones for beams."""
        tokens = [self._token() for _ in self._step.sampled]
        return StepResult(tokens=tokens, beams=[self._ranked(count) for _, count in self._step.beams])

    def _ranked(self, count: int) -> tuple[list[int], list[float]]:
        left = 1.0
        part = self._random.choice(_FIRST)
        logprobs = []
        for _ in range(count):
            logprobs.append(math.log(left * part))
            left -= left * part
            part = _REST
        return [self._token() for _ in range(count)], logprobs

    def _token(self) -> int:
        return self._random.randrange(_VOCABULARY)


def study(narrate: Callable[[str], None]) -> SharingStudy:
    """Each method, number of answers and kind of lengths, in processes of their own."""
    cases = [(method, lengths, n) for method, lengths in PAPER for n in ANSWERS]

    def job(method: str, lengths: str, answers: int) -> Callable[[], bytes]:
        return lambda: msgspec.json.encode(share(method, lengths, answers))

    rows: dict[int, Shared] = {}
    for index, answer in run_parallel([job(*case) for case in cases]):
        rows[index] = msgspec.json.decode(answer, type=Shared)
        narrate(f"{rows[index].method} {rows[index].answers}, {rows[index].lengths}")
    return SharingStudy(
        block_size=_BLOCK_SIZE,
        requests=_REQUESTS,
        rows=[rows[index] for index in range(len(cases))],
        machine=this_machine(),
    )


def share(method: str, lengths: str, answers: int, requests: int = _REQUESTS) -> Shared:
    """One row of the study."""
    trace = draw(lengths, requests)
    model = Guesses(seed=answers)
    core = EngineCore(
        model,
        num_blocks=sum(-(-(r.prompt + r.output) // _BLOCK_SIZE) for r in trace.requests) * (answers + 1),
        block_size=_BLOCK_SIZE,
        max_context=4 * trace.longest,
        vocab_size=_VOCABULARY,
        max_running=16 * answers,
    )
    for message in _messages(trace, method, answers):
        core.add(message)
    entries = blocks = generated = 0
    pool = core.blocks.pool
    while core.has_work:
        _, report = core.step()
        entries += sum([len(sequence.table) for sequence in core.scheduler.running])
        blocks += pool.num_blocks - pool.available
        generated += report.generated_tokens if report else 0
    return Shared(
        method=method,
        lengths=lengths,
        answers=answers,
        saved=1 - blocks / entries,
        paper=PAPER[method, lengths][ANSWERS.index(answers)],
        copies_per_token=model.copies / generated,
    )


def _messages(trace: Trace, method: str, answers: int) -> Iterator[AddRequest]:
    tokens = itertools.count()  # no two prompts share anything
    for index, request in enumerate(trace.requests):
        yield AddRequest(
            request_id=str(index),
            session="",
            prompt=tuple(itertools.islice(tokens, request.prompt)),
            sampling=SamplingParams(max_tokens=request.output, seed=0),
            n=answers,
            beam=BeamParams(width=answers) if method == "beam" else None,
        )


def table(result: SharingStudy) -> str:
    """For people: saved memory beside the paper's."""
    lines = [
        f"Table entries without a block of their own, mean over all steps; {result.requests} requests a row, "
        f"blocks of {result.block_size}",
        "",
        f"{'':<10}{'lengths':<16}{'answers':>8}{'saved':>9}{'paper':>9}{'copied blocks a token':>24}",
    ]
    for row in result.rows:
        paper = "" if row.paper is None else f"{row.paper:.1%}"
        lines.append(
            f"{row.method:<10}{row.lengths:<16}{row.answers:>8}{row.saved:>9.1%}{paper:>9}{row.copies_per_token:>24.3f}"
        )
    return "\n".join([*lines, "", result.machine.line()])
