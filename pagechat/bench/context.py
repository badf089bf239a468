"""`pagechat-bench context`: the time of one decode step on the CPU, by number of chats and length of their contexts.

A cell is one step of the engine's runner, again and again: so many chats of one length, each of which computes its
last token. Their blocks are disjoint and lie scattered over a pool that was written once, whole: memory that never
was takes no time to read. Cells take turns in rounds, so that a busy machine weighs on all alike.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from engine.process.config import BLOCK_SIZES, EngineConfig
from pagechat.bench.loading import checked, narrate, numbers, say, stop
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.plot import Line, as_svg, round_up
from pagechat.bench.simulate import print_result

if TYPE_CHECKING:
    from engine.execution.runner import Runner
    from engine.execution.step_input import StepInput
    from engine.models.loading.load import LoadedModel

SEED = 20261130
"""Of where the blocks lie."""

ROUNDS, SECONDS = 3, 0.7
"""How often each cell has its turn, and how long a turn lasts: a step at least."""

SHARE = 0.6
"""Of the memory that is free, for the pool."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    """Chats in a step."""
    context: int
    """Tokens of each, the one that is computed included."""
    ms: float
    """Of a step, the median."""
    fastest_ms: float
    slowest_ms: float
    steps: int
    tokens_per_s: float
    """Of each chat."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The least-squares line through the cells of a batch: ms = `ms` + `ms_per_token` * context."""

    batch: int
    ms: float
    ms_per_token: float
    deviation: float
    """The largest difference of a cell from it, over what was measured there."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `context --json`."""

    model: str
    dtype: str
    threads: int
    torch: str
    block_size: int
    kv_bytes_per_token: int
    cells: list[Cell]
    fits: list[Fit]
    """Of the batches with three cells or more."""
    left_out: list[str]
    """What was asked for and not measured, and why."""
    machine: Machine


def what_fits(
    batches: list[int], contexts: list[int], *, longest: int, token_bytes: int, block_size: int, free: int
) -> tuple[list[tuple[int, int]], list[str]]:
    """The cells (batch, context) for a model that reads `longest` tokens and whose pool may have `free` bytes; and
    which are left out, in words."""
    left_out = [f"context {context:,}: the model reads {longest:,} tokens" for context in contexts if context > longest]
    cells = []
    for batch in batches:
        for context in contexts:
            if context > longest:
                continue
            wanted = (batch * -(-context // block_size) + 1) * block_size * token_bytes  # one more: the null block
            if wanted <= free:
                cells.append((batch, context))
            else:
                left_out.append(
                    f"batch {batch}, context {context:,}: {wanted / (1 << 20):,.0f} MiB of KV, "
                    f"{free / (1 << 20):,.0f} MiB may be taken"
                )
    return cells, left_out


def scattered_step(runner: Runner, batch: int, context: int) -> StepInput:
    """The last token of so many chats, whose blocks lie anywhere in the pool."""
    from engine.execution.runner import prompt_step

    each = -(-context // runner.block_size)
    blocks = random.Random(SEED).sample(range(1, runner.num_blocks + 1), batch * each)  # noqa: S311 (no secret)
    return prompt_step([(context - 1, 1)] * batch, runner.block_size, blocks)


def time_steps(execute: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each, one at least, after one that does not count."""
    execute()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        started = time.perf_counter()
        execute()
        found.append((time.perf_counter() - started) * 1e3)
    return found


def measure(model: LoadedModel, cells: list[tuple[int, int]], block_size: int, seconds: float) -> list[Cell]:
    """The cells in turns of `seconds`, in a pool that is as large as the largest needs."""
    import torch

    from engine.execution.runner import Runner

    runner = Runner(model, max(batch * -(-context // block_size) for batch, context in cells), block_size)
    for pool in runner.kv:
        pool.copy_(torch.randn(pool.shape[1:], generator=torch.Generator().manual_seed(SEED)))
    steps = {cell: scattered_step(runner, *cell) for cell in cells}
    times: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for number in range(1, ROUNDS + 1):
        for cell, step in steps.items():
            found = time_steps(lambda step=step: runner.execute(step), seconds)  # type: ignore[misc]
            times[cell] += found
            batch, context = cell
            say(f"batch {batch}, context {context:,}, round {number}/{ROUNDS}: {statistics.median(found):.2f} ms/step")
    return [_cell(batch, context, found) for (batch, context), found in times.items()]


def _cell(batch: int, context: int, times: list[float]) -> Cell:
    ms = statistics.median(times)
    return Cell(
        batch=batch,
        context=context,
        ms=ms,
        fastest_ms=min(times),
        slowest_ms=max(times),
        steps=len(times),
        tokens_per_s=1e3 / ms,
    )


def fit(cells: list[Cell]) -> Fit:
    """Through the cells of one batch."""
    slope, start = statistics.linear_regression([cell.context for cell in cells], [cell.ms for cell in cells])
    return Fit(
        batch=cells[0].batch,
        ms=start,
        ms_per_token=slope,
        deviation=max(abs(start + slope * cell.context - cell.ms) / cell.ms for cell in cells),
    )


def by_batch(cells: list[Cell]) -> dict[int, list[Cell]]:
    found: dict[int, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.batch, []).append(cell)
    return found


def context_command(
    model: Annotated[str, typer.Option(help="Model: a name, a directory or a .gguf file.")] = "smollm2",
    batch: Annotated[str, typer.Option(help="Chats in a step, comma-separated.")] = "1,4,16,32",
    context: Annotated[
        str, typer.Option(help="Tokens of each chat, comma-separated. What the model cannot read is left out.")
    ] = "128,512,2048,8192",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write a line chart of ms/step against context.")
    ] = None,
    block_size: Annotated[int, typer.Option(help=f"Tokens in a block: {', '.join(map(str, BLOCK_SIZES))}.")] = 16,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    weights_dtype: Annotated[str, typer.Option(help="auto, float32, bf16, int8 or int4.")] = "auto",
    cpu_kernels: Annotated[str, typer.Option(help="auto (C++ where there is a compiler) or torch.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time one decode step of the engine's runner (embedding, all layers, head, greedy choice) by number of chats and
    context length, and fit a line through each batch: does cost grow linearly with context?

    Runs on the CPU, also where there is a GPU. Cells take turns in rounds, and the median of their steps counts; those
    whose KV does not fit memory are left out.
    Exit codes: 1 the model cannot be loaded, or the chart not written; 2 wrong usage, or nothing fits.
    """
    try:
        batches, contexts = numbers("--batch", batch), numbers("--context", context)
        if block_size not in BLOCK_SIZES:
            raise ValueError(f"block sizes are {', '.join(map(str, BLOCK_SIZES))}")
        config = checked(
            EngineConfig(
                model=model,
                device="cpu",
                dtype=cast(Any, dtype),
                weights_dtype=cast(Any, weights_dtype),
                cpu_kernels=cast(Any, cpu_kernels),
            )
        )
    except ValueError as error:
        stop(error, 2)
    import torch

    from engine import models
    from engine.process.available import available_bytes

    try:
        loaded = models.load(models.resolve(model, narrate), config, narrate)
    except models.ModelError as error:
        stop(error, 1)
    cells, left_out = what_fits(
        batches,
        contexts,
        longest=loaded.info.max_context,
        token_bytes=loaded.kv_bytes_per_token,
        block_size=block_size,
        free=int(available_bytes("cpu") * SHARE),
    )
    for reason in left_out:
        say(f"left out: {reason}")
    if not cells:
        stop("nothing that fits is left to measure", 2)
    measured = measure(loaded, cells, block_size, SECONDS)
    result = Context(
        model=loaded.info.name,
        dtype=loaded.info.numbers,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        block_size=block_size,
        kv_bytes_per_token=loaded.kv_bytes_per_token,
        cells=measured,
        fits=[fit(cells) for cells in by_batch(measured).values() if len(cells) > 2],
        left_out=left_out,
        machine=this_machine(),
    )
    print_result(result, table, as_json)
    if plot is not None:
        try:
            plot.write_text(svg(result), encoding="utf-8")
        except OSError as error:
            stop(error, 1)


def svg(result: Context) -> str:
    """Milliseconds a step against context, a line a batch."""
    return as_svg(
        [
            Line(f"{batch} chat{'s' * (batch > 1)}", [(cell.context, cell.ms) for cell in cells])
            for batch, cells in by_batch(result.cells).items()
        ],
        title=f"{result.model}, {result.dtype}: one decode step",
        x_label="tokens of context of each chat",
        y_label="ms/step",
        top=round_up(max(cell.ms for cell in result.cells)),
        ticks=",g",
    )


def table(result: Context) -> str:
    """For people."""
    lines = [
        f"{result.model}, {result.dtype} on cpu, {result.threads} threads; decode steps on scattered blocks of "
        f"{result.block_size}, {result.kv_bytes_per_token:,} bytes of KV a token; medians of {ROUNDS} rounds",
        "",
        f"{'batch':>5}{'context':>9}{'ms/step':>10}{'(fastest .. slowest)':>24}{'steps':>7}{'tok/s a chat':>14}",
    ]
    for cell in result.cells:
        spread = f"({cell.fastest_ms:,.2f} .. {cell.slowest_ms:,.2f})"
        lines.append(
            f"{cell.batch:>5}{cell.context:>9,}{cell.ms:>10,.2f}{spread:>24}{cell.steps:>7}{cell.tokens_per_s:>14.2f}"
        )
    lines += [
        "",
        *(
            f"batch {one.batch}: {one.ms:.2f} ms + {one.ms_per_token * 1e3:.3f} ms for each 1,000 tokens of context; "
            f"at most {one.deviation:.1%} off"
            for one in result.fits
        ),
        *(f"left out: {reason}" for reason in result.left_out),
        "",
        f"torch {result.torch}",
    ]
    return "\n".join([*lines, result.machine.line()])
