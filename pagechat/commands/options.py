"""The engine's options, which `serve` and the app share: how they are written and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagechat.commands import exits
from pagechat.commands.exits import CommandError

if TYPE_CHECKING:
    from engine.process.config import EngineConfig

RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir", envvar="PAGECHAT_RUN_DIR", metavar="DIR", help="Where the daemon's lock and sockets are."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        envvar="PAGECHAT_MODEL",
        metavar="NAME",
        help="A folder in Hugging Face layout, a .gguf file or a name. [smollm2]",
    ),
]
BlockSize = Annotated[
    str | None,
    typer.Option(
        envvar="PAGECHAT_BLOCK_SIZE",
        metavar="N",
        help="Tokens in a block: 8, 16, 32, 64, 128 or auto. [auto: 16; larger ones waste more and are hardly faster]",
    ),
]
NumBlocks = Annotated[
    int | None,
    typer.Option(envvar="PAGECHAT_NUM_BLOCKS", metavar="N", min=1, help="Blocks in the pool. [what the memory holds]"),
]
KvMemory = Annotated[
    str | None,
    typer.Option(envvar="PAGECHAT_KV_MEMORY", metavar="SIZE", help="Memory for the pool, like 2GiB. [a share of it]"),
]
MaxContext = Annotated[
    int | None,
    typer.Option(envvar="PAGECHAT_MAX_CONTEXT", metavar="N", min=1, help="Tokens of prompt and answer. [the model's]"),
]
StepTokens = Annotated[
    int | None,
    typer.Option(envvar="PAGECHAT_STEP_TOKENS", metavar="N", min=1, help="Most tokens computed in one step. [512]"),
]
MaxRunning = Annotated[
    int | None, typer.Option(envvar="PAGECHAT_MAX_RUNNING", metavar="N", min=1, help="Most requests in one step. [256]")
]
PrefixCache = Annotated[
    bool | None,
    typer.Option(
        "--prefix-cache/--no-prefix-cache", envvar="PAGECHAT_PREFIX_CACHE", help="Reuse computed prefixes. [on]"
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        envvar="PAGECHAT_POLICY",
        metavar="NAME",
        help="paged, or what it replaced: contiguous-max, contiguous-pow2, contiguous-oracle. [paged]",
    ),
]
SwapMemory = Annotated[
    str | None,
    typer.Option(
        envvar="PAGECHAT_SWAP_MEMORY", metavar="SIZE", help="Host memory for preempted sequences, like 512MiB. [0]"
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        envvar="PAGECHAT_DTYPE",
        metavar="NAME",
        help="auto, float32, bfloat16 or float16, for what is computed and KV. [auto: what this device is fastest at]",
    ),
]
WeightsDtype = Annotated[
    str | None,
    typer.Option(
        envvar="PAGECHAT_WEIGHTS_DTYPE",
        metavar="NAME",
        help="On a CPU: auto, float32, bf16, int8 or int4. [auto: 4 bits for what a file has in 4, else 8]",
    ),
]
CpuKernels = Annotated[
    str | None,
    typer.Option(
        envvar="PAGECHAT_CPU_KERNELS",
        metavar="NAME",
        help="auto: in C++, compiled once, where there is a compiler; torch: never. [auto]",
    ),
]
Device = Annotated[
    str | None, typer.Option(envvar="PAGECHAT_DEVICE", metavar="NAME", help="auto, cpu, cuda or cuda:N. [auto]")
]
Threads = Annotated[
    int | None,
    typer.Option(envvar="PAGECHAT_THREADS", metavar="N", min=1, help="CPU threads for tensors. [one a core]"),
]


def engine_config(**given: Any) -> EngineConfig:
    """Raises CommandError for what EngineConfig does not allow."""
    import msgspec

    from engine.blocks import POLICIES
    from engine.process.config import BLOCK_SIZES, EngineConfig
    from pagechat.sizes import SizeError, parse_size

    values = {name: value for name, value in given.items() if value is not None}
    block_size = values.pop("block_size", "auto")
    if block_size in map(str, BLOCK_SIZES):
        values["block_size"] = int(block_size)
    elif block_size != "auto":  # which is the engine's default: BENCHMARKS.md has what was measured
        raise CommandError(f"--block-size must be one of {', '.join(map(str, BLOCK_SIZES))}, or auto", exits.USAGE)
    if values.get("policy", "paged") not in POLICIES:
        raise CommandError(f"--policy must be one of {', '.join(POLICIES)}", exits.USAGE)
    for name in ("kv_memory", "swap_memory"):
        if name not in values:
            continue
        try:
            values[name] = parse_size(values[name])
        except SizeError as error:
            raise CommandError(f"--{name.replace('_', '-')}: {error}", exits.USAGE) from None
    try:
        return msgspec.convert(values, EngineConfig)
    except msgspec.ValidationError as error:
        raise CommandError(str(error), exits.USAGE) from None


def as_arguments(given: dict[str, Any]) -> list[str]:
    """Options of `serve` for what was given."""
    arguments: list[str] = []
    for name, value in given.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            arguments += [f"--{option}", str(value)]
    return arguments
