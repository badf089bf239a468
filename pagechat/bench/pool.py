"""`pagechat-bench pool`: what the bookkeeping of a step costs, and that it does not grow with the pool.

The engine's scheduler and block pool (and, in a second measurement, its accounting: meter and shadows), without
a model. Event log and lengths are drained after each step, as the engine does; appending the sampled token is not
counted.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from engine.blocks import make_tables
from engine.blocks.observe.accounting import Accounting
from engine.protocol import AddRequest, SamplingParams
from engine.requests import sequence
from engine.scheduling.scheduler import Scheduler
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.simulate import print_result

GOAL_US = 4.0
"""For each token that a full step of a pool of 100,000 blocks schedules."""

_BLOCK_SIZE = 16
_STEP_TOKENS = 2048


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences over a pool."""

    num_blocks: int
    sequences: int
    prompt: int
    output: int
    accounting: bool = False


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    load: Load
    decode_us: float
    """Processor time for each token of a decode step, in microseconds: median of the rounds."""
    decode_us_least: float
    decode_us_most: float
    prefill_us: float
    """For each prompt token, its block's hash included; one round."""


class PoolCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `pool --json`."""

    block_size: int
    rounds: int
    costs: list[Cost]
    growth: float
    """Of the same 60 sequences: decode_us over 100,000 blocks / over 1,000 blocks."""
    machine: Machine


SAME = Load(num_blocks=1_000, sequences=60, prompt=64, output=200)
LOADS = (
    SAME,
    msgspec.structs.replace(SAME, num_blocks=100_000),
    Load(num_blocks=100_000, sequences=256, prompt=5_500, output=200),
    Load(num_blocks=100_000, sequences=256, prompt=5_500, output=200, accounting=True),
)
"""The first two do the same work over pools of different sizes; the others fill the pool to nine tenths."""


def measure(loads: Sequence[Load], rounds: int) -> list[Cost]:
    """Prefill each load, then decode in rounds, each load in turn: what disturbs the machine disturbs them all."""
    gc.collect()
    gc.freeze()  # what this process had before is none of the loads' business
    try:
        benches = [_Bench(load) for load in loads]
        prefill = [bench.prefill() for bench in benches]
        decode = [[bench.decode((bench.load.output - 2) // rounds) for bench in benches] for _ in range(rounds)]
    finally:
        gc.unfreeze()
    return [
        Cost(
            load=load,
            decode_us=statistics.median(costs),
            decode_us_least=min(costs),
            decode_us_most=max(costs),
            prefill_us=prefill_us,
        )
        for load, costs, prefill_us in zip(loads, zip(*decode, strict=True), prefill, strict=True)
    ]


class _Bench:
    def __init__(self, load: Load) -> None:
        self.load = load
        self._blocks = make_tables(
            "paged", num_blocks=load.num_blocks, block_size=_BLOCK_SIZE, max_context=load.prompt + load.output
        )
        self._scheduler = Scheduler(self._blocks, step_tokens=_STEP_TOKENS, max_running=load.sequences)
        self._accounting = (
            Accounting(load.num_blocks, _BLOCK_SIZE, load.prompt + load.output) if load.accounting else None
        )
        for index in range(load.sequences):
            # Prompts of different lengths, so that blocks fill at different steps.
            prompt = range(index * load.prompt, (index + 1) * load.prompt - index % _BLOCK_SIZE)
            sampling = SamplingParams(max_tokens=load.output, seed=0)
            if self._accounting:
                self._accounting.begin(
                    AddRequest(request_id=str(index), session=str(index), prompt=tuple(prompt), sampling=sampling)
                )
            self._scheduler.add(
                sequence.Sequence(
                    id=index,
                    request_id=str(index),
                    session=str(index),
                    tokens=list(prompt),
                    prompt_len=len(prompt),
                    sampling=sampling,
                )
            )

    def prefill(self) -> float:
        """Microseconds for each prompt token."""
        tokens = seconds = 0.0
        while self._scheduler.waiting or any(len(s.tokens) - s.computed > 1 for s in self._scheduler.running):
            spent, scheduled = self._step()
            seconds, tokens = seconds + spent, tokens + scheduled
        return seconds / tokens * 1e6

    def decode(self, steps: int) -> float:
        """Microseconds for each token, over some steps."""
        tokens = seconds = 0.0
        gc.collect()
        for _ in range(steps):
            spent, scheduled = self._step()
            seconds, tokens = seconds + spent, tokens + scheduled
        return seconds / tokens * 1e6

    def _step(self) -> tuple[float, int]:
        started = time.thread_time()
        step = self._scheduler.schedule()
        assert step is not None, "the load fits its pool"
        if self._accounting:
            self._accounting.saw_step(step)
        _, events = self._blocks.events.drain()
        self._blocks.take_lengths()
        if self._accounting:
            self._accounting.apply(events, self._scheduler.running)
        spent = time.thread_time() - started
        for span in step.spans:
            if span.samples:
                span.sequence.tokens.append(7)
        return spent, sum(span.count for span in step.spans)


def pool_costs(rounds: int) -> PoolCosts:
    """All loads."""
    costs = measure(LOADS, rounds)
    return PoolCosts(
        block_size=_BLOCK_SIZE,
        rounds=rounds,
        costs=costs,
        growth=costs[1].decode_us_least / costs[0].decode_us_least,
        machine=this_machine(),
    )


def table(result: PoolCosts) -> str:
    """For people."""
    lines = [
        f"Scheduler and pool, blocks of {result.block_size}; processor time, median of {result.rounds} rounds "
        "(least to most)",
        "",
        f"{'blocks':>9}{'sequences':>11}{'tokens each':>13}{'us a decoded token':>31}{'us a prompt token':>20}",
    ]
    for cost in result.costs:
        load = cost.load
        decode = f"{cost.decode_us:.2f} ({cost.decode_us_least:.2f} to {cost.decode_us_most:.2f})"
        more = "  with meter and shadows" if load.accounting else ""
        lines.append(
            f"{load.num_blocks:>9,}{load.sequences:>11,}{load.prompt:>13,}{decode:>31}{cost.prefill_us:>20.3f}{more}"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"The same {SAME.sequences} sequences cost {result.growth:.2f} times as much in a pool 100 times as large"
            " (least of the rounds).",
            f"Goal: under {GOAL_US:g} us.",
            "",
            result.machine.line(),
        ]
    )


def pool_command(
    rounds: Annotated[int, typer.Option(min=1, max=99, help="Rounds of each measurement.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what scheduling a token costs, in small and large pools."""
    print_result(pool_costs(rounds), table, as_json)
