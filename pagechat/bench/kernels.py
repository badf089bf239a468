"""`pagechat-bench kernels`: each GPU kernel alone, against the bytes it must move and what this card's memory does.

A case is captured as one CUDA graph of several calls, each on data of its own (as the layers of a model have), so
that no launch from Python and no cached data is measured; the figure is the median of many replays over the calls.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from pagechat.bench.machine import Machine, this_machine

SEED = 20261130


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on one shape."""

    what: str
    microseconds: float
    """Median; the spread is between the 10th and 90th percentile."""
    low: float
    high: float
    nbytes: int
    """That must be read and written, each once."""
    of_read: float
    """Bytes a second, over those of the read measured in the same run."""
    of_copy: float
    tflops: float | None = None
    """For what is bound by arithmetic."""


class KernelBench(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    torch: str
    triton: str
    block_size: int
    read_gb_per_s: float
    copy_gb_per_s: float
    kernels: list[KernelTime]
    machine: Machine


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    nbytes: int
    """Of one call."""
    calls: Sequence[Callable[[], object]]
    flops: float = 0.0


def kernels_command(
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 16,
    only: Annotated[str, typer.Option(help="Only kernels whose description contains this.")] = "",
    lengths: Annotated[
        Path | None, typer.Option(help="CSV of prompt,output tokens: a decode over the first 256 of them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time each GPU kernel against the bytes it must move, as a share of this card's memory bandwidth."""
    import torch

    if not torch.cuda.is_available():
        print("pagechat-bench: kernels needs an NVIDIA GPU and a CUDA build of torch.", file=sys.stderr)
        raise typer.Exit(1)
    import triton

    with torch.inference_mode():
        read, copy = _read_speed(), _copy_speed()
        times = []
        for make in _cases(block_size, _read_lengths(lengths)):
            if only in make[0]:
                times.append(_time(make[1](), read, copy))
                torch.cuda.empty_cache()
                print(_line(times[-1]), file=sys.stderr)
    result = KernelBench(
        device=torch.cuda.get_device_name(),
        torch=str(torch.__version__),
        triton=triton.__version__,
        block_size=block_size,
        read_gb_per_s=read / 1e9,
        copy_gb_per_s=copy / 1e9,
        kernels=times,
        machine=this_machine(),
    )
    print(msgspec.json.encode(result).decode() if as_json else _table(result))


def _read_lengths(path: Path | None) -> list[int]:
    """Prompt and output tokens of each row, added up."""
    if path is None:
        return []
    rows = [line.split(",") for line in path.read_text().splitlines()]
    return [int(row[0]) + int(row[1]) for row in rows if row[0].strip().isdigit()]


# -- what is timed ----------------------------------------------------------------------------------


def _cases(block_size: int, lengths: list[int]) -> Iterator[tuple[str, Callable[[], _Case]]]:
    ragged = [int(100 * 160 ** (i / 63)) for i in range(64)]
    for name, contexts in (
        ("decode 64 x 1,024", [1024] * 64),
        ("decode 64 x 4,096", [4096] * 64),
        ("decode 64 x 16,384", [16384] * 64),
        ("decode 1 x 32,768", [32768]),
        ("decode 1 x 1,168", [1168]),
        ("decode 16 x 1,168", [1168] * 16),
        ("decode 256 x 1,168", [1168] * 256),
        ("decode 64 ragged, 100 to 16,000", ragged),
        ("decode 256 of the given lengths", lengths[:256]),
    ):
        if contexts:
            yield name, partial(_decode, name, contexts, block_size)
    for sequences, shared, own in ((128, 4096, 128), (16, 4096, 128), (256, 512, 512), (4, 1024, 128)):
        name = f"decode {sequences} x ({shared:,} shared + {own} own)"
        yield name, partial(_decode, name, [shared + own] * sequences, block_size, shared)
    name = "decode 64 x 4 x (1,024 shared by 4 + 128 own)"
    yield name, partial(_decode, name, [1152] * 256, block_size, 1024, 4)
    for count, start in ((4096, 0), (2048, 4096), (512, 16384)):
        name = f"prefill {count:,} tokens after {start:,}"
        yield name, partial(_prefill, name, [(start, count)], block_size)
    name = "prefill 8 prompts of 1,024"
    yield name, partial(_prefill, name, [(0, 1024)] * 8, block_size)
    name = "mixed 7 prompts of 1,024 + 256 decoding at 1,168"
    yield name, partial(_prefill, name, [(0, 1024)] * 7 + [(1167, 1)] * 256, block_size)
    for rows in (1, 4, 16, 64):
        for part, out, inputs in (
            ("qkv", 6144, 4096),
            ("o", 4096, 4096),
            ("gate_up", 28672, 4096),
            ("down", 4096, 14336),
        ):
            for how in ("ours", "cuBLAS"):
                name = f"linear {part} {rows} rows, {how}"
                yield name, partial(_linear, name, part, out, inputs, rows, how)
    for rows in (1, 64, 8192):
        yield f"rms_norm {rows} rows", partial(_norm, rows)
        yield f"silu_and_mul {rows} rows", partial(_silu, rows)
        yield f"rope_and_cache_kv {rows} tokens", partial(_rope, rows, block_size)
    yield "copy_blocks 64 blocks", partial(_copy_blocks, block_size)


HEADS, KV_HEADS, HEAD_DIM, HIDDEN, MLP = 32, 8, 128, 4096, 14336
"""Of Llama 3.1 8B."""
LINEARS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Its weights, (out, in)."""


def _pools(contexts: list[int], block_size: int, shared: int, by: int) -> tuple[list[Any], list[list[int]], int]:
    """KV of enough layers that no call finds its data in the cache, block tables in random order, bytes read."""
    import torch

    source = random.Random(SEED)  # noqa: S311 (no secret)
    by = by or len(contexts)
    common = shared // block_size
    needed = sum(-(-c // block_size) - common for c in contexts) + common * -(-len(contexts) // by)
    order = source.sample(range(1, needed + 1), needed)
    tables: list[list[int]] = []
    for i, context in enumerate(contexts):
        head = tables[i - i % by][:common] if i % by and common else [order.pop() for _ in range(common)]
        tables.append([*head, *(order.pop() for _ in range(-(-context // block_size) - common))])
    per_token = 2 * KV_HEADS * HEAD_DIM * 2
    nbytes = per_token * (sum(c - shared for c in contexts) + shared * -(-len(contexts) // by))
    layers = max(2, min(32, int(4e9 // nbytes)))
    shape = (needed + 1, 2, KV_HEADS, block_size, HEAD_DIM)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(layers)], tables, nbytes


def _decode(what: str, contexts: list[int], block_size: int, shared: int = 0, by: int = 0) -> _Case:
    import torch

    from kernels.triton import paged_attention
    from kernels.triton.plan import plan_decode

    pools, tables, nbytes = _pools(contexts, block_size, shared, by)
    plan, _ = plan_decode(
        contexts, tables, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=block_size, device="cuda"
    )
    q = torch.randn(len(contexts), HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    calls = [partial(paged_attention, q, kv, plan, HEAD_DIM**-0.5) for kv in pools]
    return _Case(what=what, nbytes=nbytes, calls=calls)


def _prefill(what: str, spans: list[tuple[int, int]], block_size: int) -> _Case:
    """Spans are (tokens before, tokens)."""
    import torch

    from kernels.backend import SpanTable
    from kernels.triton import paged_attention, plan_attention

    pools, tables, nbytes = _pools([start + count for start, count in spans], block_size, 0, 0)
    plan = plan_attention(
        [SpanTable(start, count, table) for (start, count), table in zip(spans, tables, strict=True)],
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=block_size,
        dtype=torch.bfloat16,
        device="cuda",
    )
    q = torch.randn(sum(count for _, count in spans), HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    calls = [partial(paged_attention, q, kv, plan, HEAD_DIM**-0.5) for kv in pools[:8]]
    pairs = sum(count * start + count * (count + 1) / 2 for start, count in spans)
    return _Case(what=what, nbytes=nbytes + 2 * q.numel() * 2, calls=calls, flops=4.0 * HEADS * HEAD_DIM * pairs)


def _linear(what: str, part: str, out: int, inputs: int, rows: int, how: str) -> _Case:
    """As the decoder uses it: with the norm before, SwiGLU or the residual after."""
    import torch
    from torch.nn import functional

    from kernels.triton import launch

    packed = [
        launch.pack_linear(torch.randn(out, inputs, device="cuda", dtype=torch.bfloat16) / 64, None) for _ in range(16)
    ]
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    norm = torch.rand(inputs, device="cuda", dtype=torch.bfloat16)
    residual = torch.zeros(rows, out, device="cuda", dtype=torch.bfloat16)

    def call(weight: Any) -> object:
        if how == "cuBLAS":
            return functional.linear(x, weight.weight)
        if part == "qkv":
            return launch.norm_linear(x, norm, 1e-5, weight)
        if part == "gate_up":
            return launch.norm_swiglu(x, norm, 1e-5, weight)
        launch.add_linear(x, weight, residual)
        return residual

    nbytes = 2 * (out * inputs + rows * (out + inputs))
    return _Case(what=what, nbytes=nbytes, calls=[partial(call, w) for w in packed], flops=2.0 * rows * out * inputs)


def _norm(rows: int) -> _Case:
    import torch

    from kernels.triton import rms_norm

    inputs = [torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(16)]
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    return _Case(
        what=f"rms_norm {rows} rows",
        nbytes=4 * rows * HIDDEN,
        calls=[partial(rms_norm, x, weight, 1e-5) for x in inputs],
    )


def _silu(rows: int) -> _Case:
    import torch

    from kernels.triton import silu_and_mul

    inputs = [torch.randn(rows, 2 * MLP, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    return _Case(
        what=f"silu_and_mul {rows} rows", nbytes=6 * rows * MLP, calls=[partial(silu_and_mul, x) for x in inputs]
    )


def _rope(tokens: int, block_size: int) -> _Case:
    import torch

    from kernels.backend import SpanTable
    from kernels.triton import plan_attention, rope_and_cache_kv, rope_angles

    pools, tables, _ = _pools([tokens], block_size, 0, 0)
    plan = plan_attention(
        [SpanTable(0, tokens, tables[0])],
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=block_size,
        dtype=torch.bfloat16,
        device="cuda",
    )
    angles = rope_angles(plan.positions, torch.rand(HEAD_DIM // 2, device="cuda"), 1.0, torch.bfloat16)
    shape = (tokens, HEADS + 2 * KV_HEADS, HEAD_DIM)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in pools]
    calls = [partial(rope_and_cache_kv, x, HEADS, angles, kv, plan) for x, kv in zip(inputs, pools, strict=True)]
    return _Case(what=f"rope_and_cache_kv {tokens} tokens", nbytes=4 * inputs[0].numel(), calls=calls)


def _copy_blocks(block_size: int) -> _Case:
    import torch

    from kernels.triton.launch import start_copy

    pools, _, _ = _pools([64 * 2 * block_size], block_size, 0, 0)
    pairs = torch.tensor([(i, i + 64) for i in range(1, 65)], dtype=torch.int32, device="cuda")
    nbytes = 64 * 2 * pools[0][0].numel() * 2
    return _Case(
        what="copy_blocks 64 blocks", nbytes=nbytes, calls=[partial(start_copy, kv, kv, pairs) for kv in pools]
    )


# -- how ----------------------------------------------------------------------------------------------


def _time(case: _Case, read: float, copy: float) -> KernelTime:
    samples = [s / len(case.calls) for s in _replays(case.calls)]
    median = statistics.median(samples)
    deciles = statistics.quantiles(samples, n=10)
    speed = case.nbytes / median
    return KernelTime(
        what=case.what,
        microseconds=median * 1e6,
        low=deciles[0] * 1e6,
        high=deciles[-1] * 1e6,
        nbytes=case.nbytes,
        of_read=speed / read,
        of_copy=speed / copy,
        tflops=case.flops / median / 1e12 if case.flops else None,
    )


def _replays(calls: Sequence[Callable[[], object]], rounds: int = 30) -> list[float]:
    """Seconds of each replay of one graph that holds all calls."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for _ in range(3):
        graph.replay()
    for event in events:
        event.record()
        graph.replay()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def _read_speed() -> float:
    """Bytes a second of a kernel that only reads."""
    import torch

    from kernels.triton.bandwidth import read_all

    data = torch.ones(1 << 30, device="cuda", dtype=torch.float32)
    sink = torch.zeros(4096, device="cuda")
    return data.numel() * 4 / statistics.median(_replays([lambda: read_all(data, sink)]))


def _copy_speed() -> float:
    """Bytes a second, read and written, of a copy."""
    import torch

    data = torch.ones(1 << 30, device="cuda", dtype=torch.float32)
    other = torch.empty_like(data)
    # A kernel, not a copy: captured in a graph, that would be the work of a copy engine.
    return 2 * data.numel() * 4 / statistics.median(_replays([lambda: torch.neg(data, out=other)]))


def _line(t: KernelTime) -> str:
    line = f"{t.what:<48}{t.microseconds:>9.1f} us ({t.low:.1f} .. {t.high:.1f}){t.nbytes / 1e6:>10.1f} MB"
    line += f"{t.of_read:>8.0%} of read{t.of_copy:>6.0%} of copy"
    return line + (f"{t.tflops:>7.0f} TFLOP/s" if t.tflops else "")


def _table(result: KernelBench) -> str:
    head = (
        f"{result.device}, torch {result.torch}, triton {result.triton}, blocks of {result.block_size}; "
        f"read {result.read_gb_per_s:,.0f} GB/s, copy {result.copy_gb_per_s:,.0f} GB/s (read and written)"
    )
    return "\n".join([head, "", *map(_line, result.kernels), "", result.machine.line()])
