"""`pagechat-bench engine`: the real engine, in this process, on requests of fixed length.

Measures output tokens per second by batch size and, side by side, by allocation policy or against
transformers' `generate`; see rounds.py for how.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import typer

from engine.blocks import POLICIES, Policy
from engine.core import EngineCore
from engine.process.config import BLOCK_SIZES, EngineConfig
from engine.protocol import StepReport, encode
from pagechat.bench.loading import checked, narrate
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.profile import StepProfile, profile_steps
from pagechat.bench.profile import table as profile_table
from pagechat.bench.rounds import (
    WANTS,
    Ask,
    Contender,
    Measurement,
    give,
    make_asks,
    measure,
    run_engine,
    run_generate,
    with_one,
)
from pagechat.sizes import SizeError, parse_size

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel
    from engine.sampling.grammar.compile import GrammarCompiler


class EngineBench(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    dtype: str
    device: str
    threads: int
    torch: str
    transformers: str | None
    block_size: int
    num_blocks: int
    requests: str
    """What was asked."""
    start_s: float
    """From nothing to ready, the model loaded and warm."""
    compilations: int
    """Kernels compiled and CUDA graphs captured after that, in all rounds."""
    rounds: int
    measurements: list[Measurement]
    profiles: dict[int, list[StepProfile]]
    """By batch; empty unless asked for."""
    machine: Machine


def engine_command(
    model: Annotated[str, typer.Option(help="Model: a name, a directory or a .gguf file.")] = "smollm2",
    config_dir: Annotated[
        Path | None, typer.Option("--config", help="Directory with a config.json, instead of --model.")
    ] = None,
    dummy_weights: Annotated[bool, typer.Option(help="Random weights: only the model's shape counts.")] = False,
    batch: Annotated[str, typer.Option(help="Requests at once; several values, comma-separated, in turn.")] = "1,8",
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of each request.")] = 64,
    output: Annotated[int, typer.Option(min=1, help="Output tokens of each request; EOS is ignored.")] = 64,
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="CSV of prompt,output tokens: one request a row, instead of --batch and these. "
            "Rows beyond the longest context are left out."
        ),
    ] = None,
    shared_prefix: Annotated[int, typer.Option(min=0, help="Tokens all requests start with, before --prompt.")] = 0,
    n: Annotated[int, typer.Option(min=1, max=16, help="Answers to each request, sampled at temperature 1.")] = 1,
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
    max_running: Annotated[int | None, typer.Option(min=1, help="Most sequences in a step.")] = None,
    step_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens in a step.")] = None,
    telemetry: Annotated[
        Literal["on", "off", "both"], typer.Option(help="Publish each step's report, as the daemon's engine does.")
    ] = "on",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    weights_dtype: Annotated[str, typer.Option(help="On a CPU: auto, float32, bf16, int8 or int4.")] = "auto",
    cpu_kernels: Annotated[str, typer.Option(help="auto (C++ where there is a compiler) or torch.")] = "auto",
    one_with: Annotated[
        str,
        typer.Option(
            help=f"Beside the plain batch, the same with one request that wants more: {', '.join(WANTS)} "
            "(comma-separated). json needs a tokenizer.json in the model's directory."
        ),
    ] = "",
    profile: Annotated[
        bool, typer.Option(help="Also run one round under torch's profiler: time by kernel. Needs a GPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the real engine in this process: tokens/s by batch size, policy, or against transformers."""
    try:
        batches = [int(value) for value in batch.split(",")]
        policies = [_policy(name) for name in policy.split(",")]
        wants = [want.strip() for want in one_with.split(",") if want.strip()]
        if unknown := [want for want in wants if want not in WANTS]:
            raise ValueError(f"no {unknown[0]!r} for --one-with; there are {', '.join(WANTS)}")
        if min(batches) < 1 or block_size not in BLOCK_SIZES:
            raise ValueError(f"batch sizes are at least 1, block sizes {', '.join(map(str, BLOCK_SIZES))}")
        config = EngineConfig(
            model=str(config_dir or model),
            random_weights=dummy_weights,
            step_tokens=step_tokens,
            block_size=block_size,
            num_blocks=num_blocks,
            kv_memory=parse_size(kv_memory) if kv_memory else None,
            max_context=max_context,
            max_running=max_running,
            dtype=cast(Any, dtype),
            weights_dtype=cast(Any, weights_dtype),
            cpu_kernels=cast(Any, cpu_kernels),
        )
        config = checked(config)
    except (ValueError, SizeError) as error:
        print(f"pagechat-bench: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if lengths:
        shapes = {0: _read_lengths(lengths)}
    else:
        shapes = {count: [(prompt, output)] * count for count in batches}
    said = f"the lengths of {lengths.name}" if lengths else f"prompts of {prompt:,} and answers of {output:,} tokens"
    said += f", {shared_prefix:,} shared tokens before each" if shared_prefix else ""
    said += f", {n} answers each" if n > 1 else ""
    result = _bench(
        config,
        Requests(shapes, shared_prefix, n, said, lengths is not None),
        policies,
        rounds,
        against,
        telemetry,
        profile,
        wants,
    )
    print(msgspec.json.encode(result).decode() if as_json else _table(result))


@dataclass(frozen=True)
class Requests:
    """What is asked in a round."""

    shapes: dict[int, list[tuple[int, int]]]
    """By the name of the batch, (prompt, output) tokens of each request."""
    shared: int
    n: int
    said: str
    ragged: bool
    """The lengths are those of a file."""

    def within(self, max_context: int) -> Requests:
        """Those that fit."""
        shapes = {
            batch: [pair for pair in shape if self.shared + sum(pair) <= max_context]
            for batch, shape in self.shapes.items()
        }
        left_out = sum(map(len, self.shapes.values())) - sum(map(len, shapes.values()))
        said = self.said + (f" ({left_out} beyond {max_context:,} tokens left out)" if left_out else "")
        return replace(self, shapes=shapes, said=said)


def _bench(
    config: EngineConfig,
    requests: Requests,
    policies: list[Policy],
    rounds: int,
    against: str | None,
    telemetry: Literal["on", "off", "both"],
    profile: bool,
    wants: list[str],
) -> EngineBench:
    started = time.perf_counter()
    import torch

    from engine import models
    from engine.execution.make import make_runner
    from engine.process.memory import choose_num_blocks
    from engine.sampling.grammar.compile import GrammarCompiler

    try:
        path = Path(config.model) if config.random_weights else models.resolve(config.model, narrate)
        loaded = models.load(path, config, narrate)
        num_blocks = choose_num_blocks(config, loaded)
    except models.ModelError as error:
        print(f"pagechat-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if profile and loaded.device == "cpu":
        print("pagechat-bench: --profile needs an NVIDIA GPU.", file=sys.stderr)
        raise typer.Exit(2)
    if requests.ragged:
        requests = requests.within(loaded.info.max_context)
    longest = max(requests.shared + sum(pair) for shape in requests.shapes.values() for pair in shape or [(0, 0)])
    if not requests.shared < longest <= loaded.info.max_context:
        print(f"pagechat-bench: nothing that fits a context of {loaded.info.max_context:,} tokens", file=sys.stderr)
        raise typer.Exit(2)
    runner = make_runner(loaded, num_blocks, config.block_size, max_running=config.limits(loaded.device)[1])
    runner.warm_up()
    start_s = time.perf_counter() - started
    contenders: dict[str, Contender] = {}
    versions: dict[str, str] = {}
    if against:
        contenders |= _transformers(path, versions)
    with contextlib.ExitStack() as stack:
        publish = _keep_silent if telemetry == "off" else stack.enter_context(_publisher())
        grammars = GrammarCompiler(path, loaded.info.vocab_size) if "json" in wants else None
        make_core = _core_maker(runner, loaded, config, num_blocks, grammars)
        for policy in policies:
            contenders[policy] = _engine(make_core, policy, len(policies) > 1, publish)
            if telemetry == "both":
                contenders[f"{policy}, no telemetry"] = _engine(make_core, policy, len(policies) > 1, _keep_silent)
            for want in wants:
                contenders[f"{policy}, one with {want}"] = with_one(contenders[policy], want)

        def make(batch: int, number: int) -> list[Ask]:
            return make_asks(requests.shapes[batch], requests.shared, requests.n, loaded.info.vocab_size, number)

        measurements = measure(contenders, list(requests.shapes), make, rounds)
        profiles = {}
        for batch in requests.shapes if profile else ():
            core = make_core(policies[0])
            profiles[batch] = profile_steps(core, give(core, make(batch, rounds + 1)), publish)
    return EngineBench(
        model=loaded.info.name,
        dtype=loaded.info.numbers,
        device=loaded.info.device if loaded.device == "cpu" else torch.cuda.get_device_name(loaded.device),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        transformers=versions.get("transformers"),
        block_size=config.block_size,
        num_blocks=num_blocks,
        requests=requests.said,
        start_s=start_s,
        compilations=runner.compilations,
        rounds=rounds,
        measurements=measurements,
        profiles=profiles,
        machine=this_machine(),
    )


def _read_lengths(path: Path) -> list[tuple[int, int]]:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    return [(int(row[0]), int(row[1])) for row in rows if row[0].strip().isdigit()]


@contextlib.contextmanager
def _publisher() -> Iterator[Callable[[StepReport], None]]:
    """Encodes and sends reports to a subscriber that nobody reads, as to a slow one."""
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.bind("inproc://telemetry")
    reader = context.socket(zmq.SUB)
    reader.connect("inproc://telemetry")
    reader.subscribe(b"")
    try:
        yield lambda report: socket.send(encode(report))
    finally:
        context.destroy(linger=0)


def _keep_silent(report: StepReport) -> None:
    """No telemetry."""


def _core_maker(
    runner: Any, loaded: LoadedModel, config: EngineConfig, num_blocks: int, grammars: GrammarCompiler | None
) -> Callable[[Policy], EngineCore]:
    step_tokens, max_running = config.limits(loaded.device)

    def make_core(policy: Policy) -> EngineCore:
        return EngineCore(
            runner,
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_context=loaded.info.max_context,
            vocab_size=loaded.info.vocab_size,
            step_tokens=step_tokens,
            max_running=max_running,
            policy=policy,
            grammars=grammars,
        )

    return make_core


def _engine(
    make_core: Callable[[Policy], EngineCore], policy: Policy, follow: bool, publish: Callable[[StepReport], None]
) -> Contender:
    return lambda asks: run_engine(make_core(policy), asks, follow, publish)


def _transformers(path: Path, versions: dict[str, str]) -> dict[str, Contender]:
    """transformers in float32 and in the checkpoint's own dtype: what a CPU does better differs."""
    import torch
    import transformers

    versions["transformers"] = transformers.__version__
    transformers.logging.set_verbosity_error()
    contenders: dict[str, Contender] = {}
    for dtype in (torch.float32, torch.bfloat16):
        reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
        name = f"transformers {str(dtype).removeprefix('torch.')}"
        contenders[name] = lambda asks, reference=reference: run_generate(reference, asks)  # type: ignore[misc]
    return contenders


def _policy(name: str) -> Policy:
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return name


def _table(result: EngineBench) -> str:
    lines = [
        f"{result.model}, {result.dtype} on {result.device}, {result.threads} threads; "
        f"{result.requests}; "
        f"{result.num_blocks:,} blocks of {result.block_size}; median of {result.rounds} rounds",
        "",
        f"{'':<26}{'batch':>7}{'tok/s':>10}{'(slowest .. fastest)':>24}{'ratio':>8}{'ms/step':>9}{'(range)':>16}"
        f"{'running':>10}{'peak':>6}{'filled':>8}",
    ]
    for m in result.measurements:
        spread = f"({m.slowest:.1f} .. {m.fastest:.1f})"
        line = f"{m.what:<26}{m.batch:>7}{m.tokens_per_s:>10.1f}{spread:>24}{m.ratio:>8.2f}"
        step = f"({m.ms_fastest:.2f}..{m.ms_slowest:.2f})" if m.ms_per_step else ""
        line += f"{m.ms_per_step:>9.2f}{step:>16}" if m.ms_per_step else " " * 25
        if m.running_mean is not None:
            line += f"{m.running_mean:>10.1f}{m.running_peak:>6}"
            line += f"{m.utilisation:>8.1%}" if m.utilisation is not None else ""
        lines.append(line)
    for batch, profiles in result.profiles.items():
        lines += ["", f"batch {batch}", profile_table(profiles)]
    lines += [
        "",
        f"ready after {result.start_s:.1f} s; kernels compiled and graphs captured after that: {result.compilations}",
        f"torch {result.torch}" + (f", transformers {result.transformers}" if result.transformers else ""),
    ]
    return "\n".join([*lines, result.machine.line()])
