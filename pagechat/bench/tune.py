"""`pagechat-bench tune`: which block size suits a trace, and why. Simulated: see replay.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.process.config import BLOCK_SIZES
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.outcome import Outcome, Setup
from pagechat.bench.simulate import narrate, print_result, slots_of_pool, tokens_counter
from pagechat.bench.simulation import SimulationError, TraceInfo, describe, power_of_two, replay_all
from pagechat.bench.traces import DRAWN, Trace, TraceError, find_trace
from pagechat.text_safety import sanitize

SIZES = (4, *BLOCK_SIZES)
"""Block sizes that are measured; the engine takes those of `BLOCK_SIZES`."""

TOLERANCE = 0.01
"""What a block size may lose against the best one, in requests held and in prompt tokens found in the cache."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int
    num_blocks: int
    utilisation: float
    """Slots holding tokens over allocated slots."""
    internal_waste: float
    """Empty slots in last blocks, over all slots of the pool."""
    requests_held: float
    cached_share: float
    """Prompt tokens found in the prefix cache, over all prompt tokens."""
    table_blocks: float
    """Mean blocks in a sequence's table."""
    bookkeeping_us: float
    """Processor time of scheduler, pool and simulation for each scheduled token, in microseconds."""
    preemptions: int


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `tune --json`."""

    trace: TraceInfo
    slots: int
    tolerance: float
    rows: list[Row]
    recommended: int
    reasons: list[str]
    machine: Machine


def tune(trace: Trace, setup: Setup, slots: int) -> Tuning:
    """The policy `paged` with each block size, over as many slots."""
    setups = [msgspec.structs.replace(setup, block_size=size, num_blocks=slots // size) for size in SIZES]
    outcomes = replay_all(trace, setups, narrate, lambda setup: f"blocks of {setup.block_size}")
    rows = [_row(outcome) for outcome in outcomes]
    recommended, reasons = recommend(rows)
    return Tuning(
        trace=describe(trace),
        slots=slots,
        tolerance=TOLERANCE,
        rows=rows,
        recommended=recommended,
        reasons=reasons,
        machine=this_machine(),
    )


def recommend(rows: list[Row]) -> tuple[int, list[str]]:
    """The largest block size that loses less than `TOLERANCE`: larger blocks mean shorter tables, fewer blocks to
    take, hash and gather, and nothing else speaks for them."""
    most_held = max(row.requests_held for row in rows)
    most_cached = max(row.cached_share for row in rows)
    reasons = []
    choice = next(row for row in rows if row.block_size == min(BLOCK_SIZES))
    for row in rows:
        if row.block_size not in BLOCK_SIZES:
            continue
        held = 1 - row.requests_held / most_held
        cached = 1 - row.cached_share / most_cached if most_cached else 0.0
        if max(held, cached) <= TOLERANCE:
            choice = row
        else:
            what = f"{held:.1%} fewer requests" if held >= cached else f"{cached:.1%} fewer cached prompt tokens"
            reasons.append(f"{row.block_size}: {what} than the best size, more than {TOLERANCE:.0%}")
    smallest = rows[0]
    reasons.insert(
        0,
        f"{choice.block_size}: the largest size that loses at most {TOLERANCE:.0%}; {1 - choice.utilisation:.1%} of "
        f"its allocated slots are empty, tables are {choice.table_blocks:,.1f} blocks long instead of "
        f"{smallest.table_blocks:,.1f} with {smallest.block_size}, and a token costs {choice.bookkeeping_us:.1f} us of "
        f"bookkeeping instead of {smallest.bookkeeping_us:.1f}",
    )
    return choice.block_size, reasons


def table(result: Tuning) -> str:
    """For people."""
    trace = result.trace
    lines = [
        f"{trace.name}: {trace.requests:,} requests, {trace.prompt_tokens:,} prompt and {trace.output_tokens:,} output"
        f" tokens ({trace.lengths}); {result.slots:,} slots",
        "",
        f"{'block':>6}{'empty of':>11}{'requests':>10}{'prompt tokens':>15}{'blocks in':>11}{'bookkeeping':>13}",
        f"{'size':>6}{'allocated':>11}{'held':>10}{'cached':>15}{'a table':>11}{'us a token':>13}",
    ]
    for row in result.rows:
        mark = "  <- recommended" if row.block_size == result.recommended else ""
        lines.append(
            f"{row.block_size:>6}{1 - row.utilisation:>11.1%}{row.requests_held:>10,.1f}{row.cached_share:>15.1%}"
            f"{row.table_blocks:>11,.1f}{row.bookkeeping_us:>13.2f}{mark}"
        )
    return "\n".join([*lines, "", *result.reasons, "", result.machine.line()])


def _row(outcome: Outcome) -> Row:
    allocated = outcome.pool_utilisation / outcome.utilisation if outcome.utilisation else 0.0
    return Row(
        block_size=outcome.block_size,
        num_blocks=outcome.num_blocks,
        utilisation=outcome.utilisation,
        internal_waste=outcome.waste.internal,
        requests_held=outcome.requests_held.mean,
        cached_share=outcome.cached_tokens / (outcome.prompt_tokens or 1),
        table_blocks=allocated * outcome.num_blocks / (outcome.requests_held.mean or 1),
        bookkeeping_us=outcome.cpu_s / (outcome.scheduled_tokens or 1) * 1e6,
        preemptions=outcome.preemptions,
    )


def tune_command(
    trace: Annotated[
        str,
        typer.Option(help=f"An Azure CSV, Mooncake JSONL or ShareGPT JSON file; or one of: {', '.join(DRAWN)}."),
    ],
    slots: Annotated[
        int | None, typer.Option(min=max(SIZES), help="Slots of the pool. Default: as for `simulate`.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Take the first requests of the trace only.")] = 4000,
    max_running: Annotated[int, typer.Option(min=1, help="Most sequences at once.")] = 1024,
    step_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in one step.")] = 2048,
    rate: Annotated[
        float | None, typer.Option(min=1e-6, help="Let requests arrive as recorded, this many times as fast.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json to count the tokens of ShareGPT texts with.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate block sizes from 4 to 128 on a trace and recommend one.

    The recommended size is the largest that holds at least 99 % of the requests, and finds at least 99 % of the
    cached prompt tokens, of the best one.
    """
    try:
        found = find_trace(trace, tokens_counter(tokenizer)).first(requests)
        setup = Setup(
            policy="paged",
            num_blocks=1,
            block_size=1,
            max_context=power_of_two(found.longest),
            max_running=max_running,
            step_tokens=step_tokens,
            rate=rate,
            prefix_cache=found.repeats(),
        )
        print_result(tune(found, setup, slots or slots_of_pool(found)), table, as_json)
    except (SimulationError, TraceError) as error:
        print(sanitize(f"pagechat-bench tune: {error}"), file=sys.stderr)
        raise typer.Exit(2) from None
