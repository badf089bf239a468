"""Requests of fixed length, answered as fast as may be, in rounds that take turns: `pagechat-bench engine`.

Everything compared is measured alternately, round after round in one run, so that a busy machine weighs on all alike;
ratios are of the medians.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.blocks.observe.mirror import PoolMirror
from engine.core import EngineCore
from engine.protocol import AddRequest, Grammar, SamplingParams, SamplingRules, StepReport

SEED = 20261129
"""Of the prompts' token ids; their text means nothing, only their number counts."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One thing measured at one batch size, over all rounds."""

    what: str
    batch: int
    tokens_per_s: float
    """Output tokens over wall time, prefill included; median of the rounds."""
    slowest: float
    fastest: float
    seconds: float
    """Wall time, median."""
    ms_per_step: float | None = None
    """Of the steps in which every sequence decodes, from token to token; median of the rounds' means."""
    ms_fastest: float | None = None
    ms_slowest: float | None = None
    running_mean: float | None = None
    """Sequences computed at once, mean over the steps."""
    running_peak: int | None = None
    utilisation: float | None = None
    """Slots that hold a token over slots allocated, mean over the steps."""
    preemptions: int | None = None
    ratio: float | None = None
    """This row's tokens/s over the first row's of the same batch."""


_PLAIN = SamplingRules()


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: list[int]
    output: int
    n: int = 1
    how: SamplingRules = _PLAIN
    """What it wants beside plain tokens."""


@dataclass(frozen=True)
class Round:
    """One pass over the requests of one batch."""

    tokens_per_s: float
    seconds: float
    ms_per_step: float | None = None
    running_mean: float = 0.0
    running_peak: int = 0
    utilisation: float | None = None
    preemptions: int = 0


Contender = Callable[[list[Ask]], Round]
"""Answers all requests, as fast as it can."""


def run_engine(core: EngineCore, asks: list[Ask], follow: bool, publish: Callable[[StepReport], None]) -> Round:
    """Give the core all requests at once and step until the last answer is there; EOS ends none.

    `follow` keeps a mirror of the pool beside it, to say how full its blocks are.
    """
    mirror = PoolMirror.from_snapshot(core.snapshot(0)) if follow else None
    give(core, asks)
    plain = sum(ask.n for ask in asks if ask.how == _PLAIN)
    running: list[int] = []
    filled: list[float] = []
    all_decode: list[float] = []
    generated = 0
    started = time.perf_counter()
    while core.has_work:
        _, report = core.step()
        if report is None:
            continue
        publish(report)
        generated += report.generated_tokens
        if report.generated_tokens >= plain and not report.prompt_tokens:
            all_decode.append(time.perf_counter())
        if report.running:
            running.append(report.running)
        if mirror:
            mirror.apply(report)
            if report.running:
                filled.append(mirror.slots_used / (mirror.owned_blocks * mirror.block_size))
    seconds = time.perf_counter() - started
    steps = len(all_decode) - 1
    return Round(
        generated / seconds,
        seconds,
        (all_decode[-1] - all_decode[0]) / steps * 1e3 if steps > 0 else None,
        statistics.fmean(running) if running else 0.0,
        max(running, default=0),
        statistics.fmean(filled) if filled else None,
        core.scheduler.preemptions,
    )


def give(core: EngineCore, asks: list[Ask]) -> int:
    """All requests at once; how many sequences they are."""
    for number, ask in enumerate(asks):
        sampling = SamplingParams(
            max_tokens=ask.output,
            temperature=0 if ask.n == 1 else 1,
            seed=number,
            **msgspec.structs.asdict(ask.how),
        )
        name = str(number)
        core.add(AddRequest(request_id=name, session=name, prompt=tuple(ask.prompt), sampling=sampling, n=ask.n))
    return sum(ask.n for ask in asks)


_FREE_JSON = '{"type": "array", "items": {"type": "string"}, "minItems": 100000}'
"""A schema whose text does not end before the answer's last token."""

WANTS: dict[str, SamplingRules] = {
    "logprobs": SamplingRules(logprobs=5),
    "penalties": SamplingRules(repetition_penalty=1.1, presence_penalty=0.5),
    "json": SamplingRules(grammar=Grammar(kind="json_schema", text=_FREE_JSON)),
}
"""What one request among plain ones may want: `--one-with`."""


def with_one(contender: Contender, want: str) -> Contender:
    """The same, where the last of the requests wants something more."""
    return lambda asks: contender([*asks[:-1], replace(asks[-1], how=WANTS[want])])


def run_generate(model: Any, asks: list[Ask]) -> Round:
    """transformers' `generate`, one prompt after the other, as a server without batching would."""
    import torch

    started = time.perf_counter()
    for ask in asks:
        ids = torch.tensor([ask.prompt])
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=ask.output,
            min_new_tokens=ask.output,
            do_sample=False,
            pad_token_id=0,
        )
        assert answer.shape[1] == len(ask.prompt) + ask.output
    seconds = time.perf_counter() - started
    return Round(sum(ask.output for ask in asks) / seconds, seconds)


def make_asks(lengths: list[tuple[int, int]], shared: int, n: int, vocab: int, round_number: int) -> list[Ask]:
    """Requests of random token ids, other ones in every round: nothing is found in a cache but the shared part."""
    source = random.Random(SEED + round_number)  # noqa: S311 (no secret)
    stem = source.choices(range(vocab), k=shared)
    return [Ask([*stem, *source.choices(range(vocab), k=prompt)], output, n) for prompt, output in lengths]


def measure(
    contenders: dict[str, Contender],
    batches: list[int],
    make: Callable[[int, int], list[Ask]],
    rounds: int,
) -> list[Measurement]:
    """Every contender on the same prompts, alternately; one unmeasured round first."""
    measurements = []
    for batch in batches:
        results: dict[str, list[Round]] = {name: [] for name in contenders}
        for number in range(rounds + 1):
            for name, contender in contenders.items():
                gc.collect()
                result = contender(make(batch, number))
                if number:
                    results[name].append(result)
                print(
                    f"batch {batch}, round {number}/{rounds}: {name} {result.tokens_per_s:.1f} tok/s"
                    + (f", {result.ms_per_step:.2f} ms/step" if result.ms_per_step else ""),
                    file=sys.stderr,
                )
        first = next(iter(results))
        base = statistics.median(result.tokens_per_s for result in results[first])
        for name, passes in results.items():
            speeds = [result.tokens_per_s for result in passes]
            steps = [result.ms_per_step for result in passes if result.ms_per_step is not None]
            filled = [result.utilisation for result in passes if result.utilisation is not None]
            ours = passes[0].running_peak > 0
            measurements.append(
                Measurement(
                    what=name,
                    batch=batch,
                    tokens_per_s=statistics.median(speeds),
                    slowest=min(speeds),
                    fastest=max(speeds),
                    seconds=statistics.median(result.seconds for result in passes),
                    ms_per_step=statistics.median(steps) if steps else None,
                    ms_fastest=min(steps, default=None),
                    ms_slowest=max(steps, default=None),
                    running_mean=statistics.fmean(r.running_mean for r in passes) if ours else None,
                    running_peak=max(r.running_peak for r in passes) if ours else None,
                    utilisation=statistics.fmean(filled) if filled else None,
                    preemptions=sum(r.preemptions for r in passes) if ours else None,
                    ratio=statistics.median(speeds) / base,
                )
            )
    return measurements
