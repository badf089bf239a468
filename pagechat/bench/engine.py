"""`pagechat-bench engine`: the real engine, in this process, on requests of fixed length.

Measures output tokens per second by batch size and, side by side, by allocation policy or against
transformers' `generate`. Everything compared is measured alternately, round after round in one run,
so that a busy machine weighs on all alike; ratios are of the medians.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import typer

from engine.blocks import POLICIES, Policy
from engine.blocks.mirror import PoolMirror
from engine.config import BLOCK_SIZES, EngineConfig
from engine.core import EngineCore
from engine.protocol import AddRequest, LoadProgress, SamplingParams
from pagechat.bench.machine import Machine, this_machine
from pagechat.sizes import SizeError, parse_size

if TYPE_CHECKING:
    from engine.models.loading import LoadedModel

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
    running_mean: float | None = None
    """Sequences computed at once, mean over the steps."""
    running_peak: int | None = None
    utilisation: float | None = None
    """Slots that hold a token over slots allocated, mean over the steps."""
    preemptions: int | None = None
    ratio: float | None = None
    """This row's tokens/s over the first row's of the same batch."""


class EngineBench(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    dtype: str
    device: str
    threads: int
    torch: str
    transformers: str | None
    block_size: int
    num_blocks: int
    prompt: int
    output: int
    rounds: int
    measurements: list[Measurement]
    machine: Machine


@dataclass(frozen=True)
class Round:
    """One pass over the requests of one batch."""

    tokens_per_s: float
    running_mean: float = 0.0
    running_peak: int = 0
    utilisation: float = 0.0
    preemptions: int = 0


Contender = Callable[[list[list[int]]], Round]
"""Answers all prompts, as fast as it can."""


def run_engine(core: EngineCore, prompts: list[list[int]], output: int) -> Round:
    """Give the core all prompts at once and step until the last answer, of `output` tokens each, is there."""
    mirror = PoolMirror.from_snapshot(core.snapshot(0))
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=output, temperature=0, seed=0)
        core.add(AddRequest(request_id=str(number), session=str(number), prompt=tuple(prompt), sampling=sampling))
    running: list[int] = []
    filled: list[float] = []
    generated = 0
    started = time.perf_counter()
    while core.has_work:
        _, report = core.step()
        if report:
            mirror.apply(report)
            generated += report.generated_tokens
            if report.running:
                allocated = mirror.owned_blocks * mirror.block_size
                running.append(report.running)
                filled.append(mirror.slots_used / allocated)
    seconds = time.perf_counter() - started
    return Round(
        generated / seconds,
        statistics.fmean(running) if running else 0.0,
        max(running, default=0),
        statistics.fmean(filled) if filled else 0.0,
        core.scheduler.preemptions,
    )


def run_generate(model: Any, prompts: list[list[int]], output: int) -> Round:
    """transformers' `generate`, one prompt after the other, as a server without batching would."""
    import torch

    started = time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt])
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=output,
            min_new_tokens=output,
            do_sample=False,
            pad_token_id=0,
        )
        assert answer.shape[1] == len(prompt) + output
    return Round(len(prompts) * output / (time.perf_counter() - started))


def make_prompts(count: int, length: int, vocab: int, round_number: int) -> list[list[int]]:
    """Random token ids, other ones in every round: nothing is found in a cache."""
    source = random.Random(SEED + round_number)  # noqa: S311 (no secret)
    return [[source.randrange(vocab) for _ in range(length)] for _ in range(count)]


def measure(
    contenders: dict[str, Contender],
    batches: list[int],
    make: Callable[[int, int], list[list[int]]],
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
                    f"batch {batch}, round {number}/{rounds}: {name} {result.tokens_per_s:.1f} tok/s", file=sys.stderr
                )
        first = next(iter(results))
        base = statistics.median(result.tokens_per_s for result in results[first])
        for name, passes in results.items():
            speeds = [result.tokens_per_s for result in passes]
            ours = passes[0].running_peak > 0
            measurements.append(
                Measurement(
                    what=name,
                    batch=batch,
                    tokens_per_s=statistics.median(speeds),
                    slowest=min(speeds),
                    fastest=max(speeds),
                    running_mean=statistics.fmean(r.running_mean for r in passes) if ours else None,
                    running_peak=max(r.running_peak for r in passes) if ours else None,
                    utilisation=statistics.fmean(r.utilisation for r in passes) if ours else None,
                    preemptions=sum(r.preemptions for r in passes) if ours else None,
                    ratio=statistics.median(speeds) / base,
                )
            )
    return measurements


def engine_command(
    model: Annotated[str, typer.Option(help="Model: a name, a directory or a .gguf file.")] = "smollm2",
    batch: Annotated[str, typer.Option(help="Requests at once; several values, comma-separated, in turn.")] = "1,8",
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of each request.")] = 64,
    output: Annotated[int, typer.Option(min=1, help="Output tokens of each request; EOS is ignored.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds; one more goes before them.")] = 3,
    policy: Annotated[str, typer.Option(help=f"Policies, comma-separated: {', '.join(POLICIES)}.")] = "paged",
    against: Annotated[
        Literal["transformers"] | None, typer.Option(help="Also measure transformers' generate, request by request.")
    ] = None,
    block_size: Annotated[int, typer.Option(help=f"Tokens in a block: {', '.join(map(str, BLOCK_SIZES))}.")] = 16,
    num_blocks: Annotated[int | None, typer.Option(min=1, help="Blocks of the pool.")] = None,
    kv_memory: Annotated[str | None, typer.Option(help="Memory for KV, such as 512MiB.")] = None,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence: what contiguous-max reserves for each request.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Most sequences in a step.")] = 256,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the real engine in this process: tokens/s by batch size, policy, or against transformers."""
    try:
        batches = [int(value) for value in batch.split(",")]
        policies = [_policy(name) for name in policy.split(",")]
        if min(batches) < 1 or block_size not in BLOCK_SIZES:
            raise ValueError(f"batch sizes are at least 1, block sizes {', '.join(map(str, BLOCK_SIZES))}")
        config = EngineConfig(
            model=model,
            block_size=block_size,
            num_blocks=num_blocks,
            kv_memory=parse_size(kv_memory) if kv_memory else None,
            max_context=max_context,
            max_running=max_running,
            dtype=cast(Any, dtype),
        )
        config = msgspec.convert(msgspec.to_builtins(config), EngineConfig)  # checks what the flags may say
    except (ValueError, SizeError) as error:
        print(f"pagechat-bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    result = _bench(config, batches, policies, prompt, output, rounds, against)
    print(msgspec.json.encode(result).decode() if as_json else _table(result))


def _bench(
    config: EngineConfig,
    batches: list[int],
    policies: list[Policy],
    prompt: int,
    output: int,
    rounds: int,
    against: str | None,
) -> EngineBench:
    import torch

    from engine import models
    from engine.memory import choose_num_blocks
    from engine.runner import Runner

    try:
        path = models.resolve(config.model, _narrate)
        loaded = models.load(path, config, _narrate)
        num_blocks = choose_num_blocks(config, loaded)
    except models.ModelError as error:
        print(f"pagechat-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    runner = Runner(loaded, num_blocks, config.block_size)
    runner.warm_up()
    if prompt + output > loaded.info.max_context:
        print(f"pagechat-bench: {prompt} + {output} tokens exceed {loaded.info.max_context}", file=sys.stderr)
        raise typer.Exit(2)
    contenders: dict[str, Contender] = {}
    versions: dict[str, str] = {}
    if against:
        contenders |= _transformers(path, output, versions)
    for policy in policies:
        contenders[policy] = _engine(runner, loaded, config, num_blocks, policy, output)
    measurements = measure(
        contenders, batches, lambda count, number: make_prompts(count, prompt, loaded.info.vocab_size, number), rounds
    )
    return EngineBench(
        model=loaded.info.name,
        dtype=loaded.info.dtype,
        device=loaded.info.device,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=versions.get("transformers"),
        block_size=config.block_size,
        num_blocks=num_blocks,
        prompt=prompt,
        output=output,
        rounds=rounds,
        measurements=measurements,
        machine=this_machine(),
    )


def _engine(
    runner: Any, loaded: LoadedModel, config: EngineConfig, num_blocks: int, policy: Policy, output: int
) -> Contender:
    def contender(prompts: list[list[int]]) -> Round:
        core = EngineCore(
            runner,
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_context=loaded.info.max_context,
            vocab_size=loaded.info.vocab_size,
            step_tokens=config.step_tokens,
            max_running=config.max_running,
            policy=policy,
        )
        return run_engine(core, prompts, output)

    return contender


def _transformers(path: Path, output: int, versions: dict[str, str]) -> dict[str, Contender]:
    """transformers in float32 and in the checkpoint's own dtype: what a CPU does better differs."""
    import torch
    import transformers

    versions["transformers"] = transformers.__version__
    transformers.logging.set_verbosity_error()
    contenders: dict[str, Contender] = {}
    for dtype in (torch.float32, torch.bfloat16):
        reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
        name = f"transformers {str(dtype).removeprefix('torch.')}"
        contenders[name] = lambda prompts, reference=reference: run_generate(reference, prompts, output)  # type: ignore[misc]
    return contenders


def _policy(name: str) -> Policy:
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return name


def _narrate(progress: LoadProgress) -> None:
    if progress.total and progress.done == progress.total:
        print(f"{progress.stage} {progress.detail}: done", file=sys.stderr)


def _table(result: EngineBench) -> str:
    lines = [
        f"{result.model}, {result.dtype} on {result.device}, {result.threads} threads; "
        f"prompts of {result.prompt} and answers of {result.output} tokens; "
        f"{result.num_blocks:,} blocks of {result.block_size}; median of {result.rounds} rounds",
        "",
        f"{'':<24}{'batch':>7}{'tok/s':>10}{'(slowest .. fastest)':>24}{'ratio':>8}"
        f"{'running':>10}{'peak':>6}{'filled':>8}",
    ]
    for m in result.measurements:
        spread = f"({m.slowest:.1f} .. {m.fastest:.1f})"
        line = f"{m.what:<24}{m.batch:>7}{m.tokens_per_s:>10.1f}{spread:>24}{m.ratio:>8.2f}"
        if m.running_mean is not None and m.utilisation is not None:
            line += f"{m.running_mean:>10.1f}{m.running_peak:>6}{m.utilisation:>8.1%}"
        lines.append(line)
    lines += ["", f"torch {result.torch}" + (f", transformers {result.transformers}" if result.transformers else "")]
    return "\n".join([*lines, result.machine.line()])
