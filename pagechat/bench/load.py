"""`pagechat-bench load`: the same requests to one or more OpenAI-compatible servers, in alternating rounds.

Every server gets the same prompts at the same times; each round has prompts of its own, so no round is answered from
what the one before left in a cache. Rounds alternate between the servers, so what else the machine does hits all alike.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.plot import Line, as_svg
from pagechat.bench.simulate import narrate, print_result
from pagechat.bench.sse import Streamed, complete
from pagechat.bench.traces import DRAWN, TraceError, find_trace

_WORDS = ("time", "house", "water", "light", "table", "people", "paper", "music", "river", "number", "winter", "letter")
"""Common ones, so that most tokenizers have a token for each."""


class Planned(msgspec.Struct, frozen=True):
    """One request to make."""

    at_s: float
    prompt: str
    output: int


class Quantiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p95: float
    p99: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One server's answers to one round."""

    seconds: float
    completed: int
    errors: list[str]
    """Each kind once."""
    failed: int
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: Quantiles
    itl_ms: Quantiles
    e2e_ms: Quantiles
    good: int
    """Requests within the limits for TTFT and mean ITL."""
    first_tokens_s: list[float]
    """TTFT of each request, ascending."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `load --json`."""

    servers: dict[str, list[Round]]
    requests: int
    concurrency: int
    rate: float | None
    goodput_ttft_ms: float
    goodput_itl_ms: float
    machine: Machine


def plan(lengths: Sequence[tuple[int, int]], rate: float | None, number: int) -> list[Planned]:
    """Requests of (prompt words, output tokens), all at once or as a Poisson process of `rate` a second."""
    source = random.Random(number)  # noqa: S311 (words, no secrets)
    at, planned = 0.0, []
    for prompt, output in lengths:
        words = " ".join(source.choices(_WORDS, k=prompt))
        planned.append(Planned(at, words, output))
        at += source.expovariate(rate) if rate else 0.0
    return planned


async def run_round(url: str, planned: list[Planned], options: Options) -> Round:
    """All requests of a round to one server."""
    loop = asyncio.get_running_loop()
    places = asyncio.Semaphore(options.concurrency)
    begun = loop.time()

    async def one(request: Planned) -> Streamed:
        await asyncio.sleep(max(0.0, begun + request.at_s - loop.time()))
        async with places:
            body: dict[str, Any] = {"prompt": request.prompt, "max_tokens": request.output, "temperature": 0}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            body |= {"model": options.model} if options.model else {}
            body |= {"ignore_eos": True} if options.ignore_eos else {}
            return await complete(url, body, options.key, options.timeout_s)

    found = await asyncio.gather(*(one(request) for request in planned))
    return summarise(found, loop.time() - begun, options)


def summarise(found: Sequence[Streamed], seconds: float, options: Options) -> Round:
    done = [one for one in found if one.error is None]
    first = sorted(one.arrivals[0] - one.sent for one in done)
    gaps = [[later - sooner for sooner, later in zip(one.arrivals, one.arrivals[1:], strict=False)] for one in done]
    good = sum(
        (one.arrivals[0] - one.sent) * 1e3 <= options.goodput_ttft_ms
        and (statistics.fmean(between) if between else 0.0) * 1e3 <= options.goodput_itl_ms
        for one, between in zip(done, gaps, strict=True)
    )
    return Round(
        seconds=seconds,
        completed=len(done),
        errors=sorted({one.error for one in found if one.error is not None})[:5],
        failed=len(found) - len(done),
        prompt_tokens=sum(one.prompt_tokens for one in done),
        completion_tokens=sum(one.completion_tokens or len(one.arrivals) for one in done),
        ttft_ms=quantiles(first),
        itl_ms=quantiles([gap for between in gaps for gap in between]),
        e2e_ms=quantiles([one.ended - one.sent for one in done]),
        good=good,
        first_tokens_s=first,
    )


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """By the nearest rank; zeros where there is nothing."""
    ranked = sorted(seconds) or [0.0]
    p50, p95, p99 = (ranked[min(len(ranked) - 1, int(len(ranked) * share))] * 1e3 for share in (0.5, 0.95, 0.99))
    return Quantiles(p50, p95, p99)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int
    model: str | None
    key: str | None
    ignore_eos: bool
    timeout_s: float
    goodput_ttft_ms: float
    goodput_itl_ms: float


async def _rounds(
    urls: list[str], lengths: list[tuple[int, int]], rate: float | None, count: int, seed: int, options: Options
) -> dict[str, list[Round]]:
    servers: dict[str, list[Round]] = {url: [] for url in urls}
    for number in range(count):
        planned = plan(lengths, rate, seed + number)
        for url in urls if number % 2 == 0 else reversed(urls):
            narrate(f"round {number + 1} of {count}: {url}")
            servers[url].append(await run_round(url, planned, options))
    return servers


def load_command(
    url: Annotated[list[str], typer.Option(help="A server's address up to /v1; may be given several times.")],
    requests: Annotated[int, typer.Option(min=1, help="Requests in a round.")] = 64,
    prompt: Annotated[int, typer.Option(min=1, help="Words of a prompt.")] = 128,
    output: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    trace: Annotated[
        str | None, typer.Option(help=f"Take lengths from this file, or drawn ones: {', '.join(DRAWN)}.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Most requests at a time.")] = 16,
    rate: Annotated[float | None, typer.Option(min=1e-3, help="Requests a second (Poisson); else all at once.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each server has each.")] = 3,
    seed: Annotated[int, typer.Option(help="Other prompts: servers have those of earlier runs in their caches.")] = 0,
    model: Annotated[str | None, typer.Option(help="The model to name, where a server wants one.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Ask for answers of full length (vLLM's field).")
    ] = False,
    goodput_ttft_ms: Annotated[
        float, typer.Option(min=0, help="A good request's first token comes within this.")
    ] = 500,
    goodput_itl_ms: Annotated[
        float, typer.Option(min=0, help="And its mean time between tokens is within this.")
    ] = 100,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Of a request.")] = 600,
    svg: Annotated[Path | None, typer.Option(help="Write the distribution of TTFT to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put the same load on OpenAI-compatible servers: TTFT, ITL, throughput, goodput. $PAGECHAT_API_KEY is the key."""
    lengths = [(prompt, output)] * requests
    if trace is not None:
        try:
            found = find_trace(trace).requests
        except TraceError as error:
            print(f"pagechat-bench: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        lengths = [(max(1, one.prompt), max(1, one.output)) for one in found[:requests]]
    options = Options(
        concurrency=concurrency,
        model=model,
        key=os.environ.get("PAGECHAT_API_KEY"),
        ignore_eos=ignore_eos,
        timeout_s=timeout,
        goodput_ttft_ms=goodput_ttft_ms,
        goodput_itl_ms=goodput_itl_ms,
    )
    servers = asyncio.run(_rounds(list(dict.fromkeys(url)), lengths, rate, rounds, seed, options))
    result = Load(
        servers=servers,
        requests=len(lengths),
        concurrency=concurrency,
        rate=rate,
        goodput_ttft_ms=goodput_ttft_ms,
        goodput_itl_ms=goodput_itl_ms,
        machine=this_machine(),
    )
    if svg is not None:
        svg.write_text(_svg(result), encoding="utf-8")
    print_result(result, _table, as_json)
    if not any(one.completed for found in servers.values() for one in found):
        raise typer.Exit(1)


def _table(result: Load) -> str:
    arrivals = "all at once" if result.rate is None else f"{result.rate:g} a second"
    rows = [
        f"{result.requests:,} requests a round, {arrivals}, {result.concurrency:,} at a time; medians of "
        f"{len(next(iter(result.servers.values())))} rounds (slowest .. fastest)",
        f"good: first token within {result.goodput_ttft_ms:g} ms, {result.goodput_itl_ms:g} ms between tokens",
        "",
        f"{'':<34}{'tok/s':>9}{'':>22}{'ratio':>7}{'good/s':>8}{'failed':>8}",
    ]
    base: float | None = None
    for url, found in result.servers.items():
        speeds = [one.completion_tokens / one.seconds for one in found]
        speed = statistics.median(speeds)
        base = base or speed
        good = statistics.median(one.good / one.seconds for one in found)
        spread = f"({min(speeds):,.1f} .. {max(speeds):,.1f})"
        failed = sum(one.failed for one in found)
        rows.append(f"{url:<34}{speed:>9,.1f}{spread:>22}{speed / base if base else 0:>7.2f}{good:>8,.1f}{failed:>8,}")
    rows += [
        "",
        f"{'ms':<34}{'TTFT p50':>10}{'p95':>9}{'p99':>9}{'ITL p50':>10}{'p95':>8}{'p99':>8}"
        f"{'whole p50':>12}{'p95':>10}",
    ]
    for url, found in result.servers.items():
        ttft, itl, whole = (_median([getattr(one, name) for one in found]) for name in ("ttft_ms", "itl_ms", "e2e_ms"))
        rows.append(
            f"{url:<34}{ttft.p50:>10,.1f}{ttft.p95:>9,.1f}{ttft.p99:>9,.1f}{itl.p50:>10,.1f}{itl.p95:>8,.1f}{itl.p99:>8,.1f}"
            f"{whole.p50:>12,.0f}{whole.p95:>10,.0f}"
        )
    for url, found in result.servers.items():
        rows += [f"{url}: {error}" for error in sorted({error for one in found for error in one.errors})]
    return "\n".join([*rows, "", result.machine.line()])


def _median(found: Sequence[Quantiles]) -> Quantiles:
    return Quantiles(*(statistics.median(getattr(one, name) for one in found) for name in ("p50", "p95", "p99")))


def _svg(result: Load) -> str:
    lines = []
    for url, found in result.servers.items():
        times = sorted(time for one in found for time in one.first_tokens_s)
        points = [(max(time, 1e-4) * 1e3, (rank + 1) / len(times)) for rank, time in enumerate(times)]
        lines.append(Line(url, points))
    return as_svg(
        lines,
        title="Time to the first token",
        x_label="milliseconds (logarithmic)",
        y_label="share of the requests",
        logarithmic=True,
    )
