"""`pagechat-bench simulate`: a trace through the engine's block pool and scheduler, under several policies.

Options and exit codes; what they ask for is in simulation.py and sharing.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from engine.blocks import POLICIES, Policy
from pagechat.bench import sharing
from pagechat.bench.outcome import Setup
from pagechat.bench.show import simulation_svg, sweep_svg, sweep_table, table
from pagechat.bench.simulation import SimulationError, power_of_two, simulate, sweep, unbounded
from pagechat.bench.traces import DRAWN, Trace, TraceError, find_trace
from pagechat.text_safety import sanitize

DEFAULT_SLOTS = 70_778
"""KV slots of a 13B model on an 80 GiB card: 54 GiB of 819,200 bytes each."""

T = TypeVar("T", bound=msgspec.Struct)


def simulate_command(
    trace: Annotated[
        str,
        typer.Option(help=f"An Azure CSV, Mooncake JSONL or ShareGPT JSON file; or drawn lengths: {', '.join(DRAWN)}."),
    ] = "",
    policy: Annotated[str, typer.Option(help=f"One or more, with commas: {', '.join(POLICIES)}.")] = ",".join(POLICIES),
    block_size: Annotated[int, typer.Option(min=1, max=4096, help="Slots of a block.")] = 16,
    num_blocks: Annotated[
        str | None,
        typer.Option(
            help=f"Blocks of the pool, or 'unbounded'. Default: {DEFAULT_SLOTS:,} slots (54 GiB of a 13B model), "
            "or four times the longest request if that is more."
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens that contiguous-max reserves. Default: the power of two that holds all requests.",
        ),
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Most sequences at once.")] = 1024,
    step_tokens: Annotated[int, typer.Option(min=1, help="Most tokens in one step.")] = 2048,
    rate: Annotated[
        float | None, typer.Option(min=1e-6, help="Let requests arrive as recorded, this many times as fast.")
    ] = None,
    saturate: Annotated[
        bool, typer.Option("--saturate", help="Queue all requests at the start (the default).")
    ] = False,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Keep blocks for equal prefixes (paged). Default: for traces in which prompts begin alike.",
        ),
    ] = None,
    sweep_sizes: Annotated[
        bool, typer.Option("--sweep", help="Prefix hits by pool size: unbounded, and halved again and again.")
    ] = False,
    sharing_study: Annotated[
        bool, typer.Option("--sharing", help="Memory that parallel samples and beams share; takes no trace.")
    ] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json to count the tokens of ShareGPT texts with.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the plot to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a trace through the block pool and the scheduler, without a model."""
    try:
        if saturate and rate is not None:
            raise SimulationError("--saturate queues everything at the start: it takes no --rate")
        if sharing_study:
            print_result(sharing.study(narrate), sharing.table, as_json)
            return
        if not trace:
            raise SimulationError("--trace names a file, or one of " + ", ".join(DRAWN))
        found = find_trace(trace, tokens_counter(tokenizer))
        setup = Setup(
            policy="paged",
            num_blocks=pool_size(num_blocks, found, block_size),
            block_size=block_size,
            max_context=max_context or power_of_two(found.longest),
            max_running=max_running,
            step_tokens=step_tokens,
            rate=rate,
            prefix_cache=found.repeats() if prefix_cache is None else prefix_cache,
        )
        if sweep_sizes:
            swept = sweep(found, setup, narrate)
            _write(svg, lambda: sweep_svg(swept))
            print_result(swept, sweep_table, as_json)
        else:
            result = simulate(found, setup, parse_policies(policy), narrate)
            _write(svg, lambda: simulation_svg(result))
            print_result(result, table, as_json)
    except (SimulationError, TraceError, OSError) as error:
        print(sanitize(f"pagechat-bench simulate: {error}"), file=sys.stderr)
        raise typer.Exit(2) from None


def parse_policies(text: str) -> list[Policy]:
    """The policies named, once each. Raises SimulationError."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    wrong = [name for name in names if name not in POLICIES]
    if wrong or not names:
        raise SimulationError(f"--policy: {', '.join(wrong)[:60] or 'nothing'!r} is not among {', '.join(POLICIES)}")
    return [policy for name in names for policy in POLICIES if policy == name]


def slots_of_pool(trace: Trace) -> int:
    """Slots of the pool when nothing is said about it."""
    return max(DEFAULT_SLOTS, 4 * trace.longest)


def pool_size(text: str | None, trace: Trace, block_size: int) -> int:
    """Blocks that `--num-blocks` asks for. Raises SimulationError."""
    if text is None:
        return slots_of_pool(trace) // block_size or 1
    if text == "unbounded":
        return unbounded(trace, block_size)
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) > 0):
        raise SimulationError(f"--num-blocks: {text[:40]!r} is neither a number from 1 to 9,999,999 nor 'unbounded'")
    return int(text)


def tokens_counter(tokenizer: Path | None) -> Callable[[str], int] | None:
    """Counts the tokens of a text with a tokenizer.json. Raises SimulationError."""
    if tokenizer is None:
        return None
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # tokenizers raises plain Exception
        raise SimulationError(f"--tokenizer: {error}") from None
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)


def narrate(message: str) -> None:
    """Progress, for whoever watches: stdout is for data."""
    print(sanitize(message), file=sys.stderr, flush=True)


def print_result(result: T, for_people: Callable[[T], str], as_json: bool) -> None:
    """One JSON object, or the table."""
    print(msgspec.json.format(msgspec.json.encode(result)).decode() if as_json else sanitize(for_people(result)))


def _write(path: Path | None, make: Callable[[], str]) -> None:
    if path is not None:
        path.write_text(make(), encoding="utf-8")
