"""`pagechat-bench capacity`: how many requests a memory holds, reserved in one piece each against paged on demand.

Arithmetic on a model's dimensions: no model is loaded and no device is asked.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from engine.process.config import BLOCK_SIZES
from pagechat.bench.presets import PRESETS, find
from pagechat.bench.shape import DTYPE_BYTES, ModelShape, ShapeError, read_config
from pagechat.sizes import SizeError, format_size, parse_size
from pagechat.text_safety import sanitize


class CapacityError(ValueError):
    """The question has no answer: something does not fit. The message is one line, with the numbers."""


class Contiguous(msgspec.Struct, frozen=True, kw_only=True):
    """Every request reserves its longest possible length in one piece, as servers did before paging."""

    requests: int
    """Whole requests: rounded down."""
    requests_unrounded: float
    slots_per_request: int
    empty_slots_per_request: int
    empty_share: float
    """Of the slots reserved, 0..1."""


class Paged(msgspec.Struct, frozen=True, kw_only=True):
    """Every request takes blocks as its tokens come."""

    requests: int
    """Whole requests, each with whole blocks, of the whole blocks that fit: rounded down."""
    requests_unrounded: float
    """KV memory over the bytes of one request's whole blocks."""
    num_blocks: int
    blocks_per_request: int
    slots_per_request: int
    empty_slots_per_request: int
    empty_share: float
    max_empty_slots_per_request: int
    """block_size - 1, whatever the request."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    source: str
    layers: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    kv_bytes_per_token: int
    memory_bytes: int
    weights_bytes: int
    weights_from: str
    kv_memory_bytes: int
    reserve: int
    used: int
    block_size: int
    contiguous: Contiguous
    paged: Paged
    ratio: float | None
    """paged over contiguous, both unrounded; None when not one contiguous request fits."""


def capacity(
    shape: ModelShape, *, memory: int, weights: int | None, reserve: int, used: int, block_size: int, kv_dtype: str
) -> Capacity:
    """How many requests of `used` tokens fit in `memory` bytes beside the weights.

    `weights` bytes; None takes what the shape tells. `reserve` is the tokens that a contiguous server sets aside
    for each request. Raises CapacityError when nothing fits, ShapeError when `weights` is None and unknown.
    """
    if used > reserve:
        raise CapacityError(f"a request of {used:,} tokens does not fit in a reservation of {reserve:,}")
    weights, weights_from = (weights, "given") if weights is not None else shape.weights()
    per_token = shape.kv_bytes_per_token(DTYPE_BYTES[kv_dtype])
    kv_memory = memory - weights
    blocks_per_request = -(-used // block_size)
    paged_slots = blocks_per_request * block_size
    if kv_memory < paged_slots * per_token:
        raise CapacityError(
            f"not one request fits: {format_size(memory)} less {format_size(weights)} of weights leaves "
            f"{format_size(max(kv_memory, 0))} for KV, and {used:,} tokens take {format_size(paged_slots * per_token)}"
        )
    contiguous = Fraction(kv_memory, reserve * per_token)
    paged = Fraction(kv_memory, paged_slots * per_token)
    num_blocks = kv_memory // (block_size * per_token)
    return Capacity(
        model=shape.name,
        source=shape.source,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        kv_dtype=kv_dtype,
        kv_bytes_per_token=per_token,
        memory_bytes=memory,
        weights_bytes=weights,
        weights_from=weights_from,
        kv_memory_bytes=kv_memory,
        reserve=reserve,
        used=used,
        block_size=block_size,
        contiguous=Contiguous(
            requests=int(contiguous),
            requests_unrounded=float(contiguous),
            slots_per_request=reserve,
            empty_slots_per_request=reserve - used,
            empty_share=(reserve - used) / reserve,
        ),
        paged=Paged(
            requests=num_blocks // blocks_per_request,
            requests_unrounded=float(paged),
            num_blocks=num_blocks,
            blocks_per_request=blocks_per_request,
            slots_per_request=paged_slots,
            empty_slots_per_request=paged_slots - used,
            empty_share=(paged_slots - used) / paged_slots,
            max_empty_slots_per_request=block_size - 1,
        ),
        ratio=float(paged / contiguous) if contiguous >= 1 else None,
    )


def describe(result: Capacity) -> str:
    """The result as a table for people."""
    contiguous, paged = result.contiguous, result.paged
    blocks = f"{paged.blocks_per_request:,} x {result.block_size} slots"
    empty = f"{contiguous.empty_slots_per_request:,} ({contiguous.empty_share:.1%})"
    empty_paged = f"{paged.empty_slots_per_request:,} ({paged.empty_share:.1%}), at most {result.block_size - 1}"
    rows = [
        ("", "contiguous", "paged"),
        ("a request takes", f"{contiguous.slots_per_request:,} slots", blocks),
        ("of them empty", empty, empty_paged),
        ("requests that fit", f"{contiguous.requests:,}", f"{paged.requests:,}"),
        ("before rounding down", f"{contiguous.requests_unrounded:,.2f}", f"{paged.requests_unrounded:,.2f}"),
    ]
    if result.ratio is None:
        verdict = "Not one contiguous request fits, so there is no ratio."
    else:
        verdict = (
            f"Paged holds {result.ratio:,.1f} times as many: "
            f"{paged.requests_unrounded:,.2f} / {contiguous.requests_unrounded:,.2f}, the figures before rounding."
        )
    dimensions = f"{result.layers} layers, {result.kv_heads} KV heads of {result.head_dim}, {result.kv_dtype} KV"
    per_token = f"{result.kv_bytes_per_token / 1024**2:.2f} MiB ({result.kv_bytes_per_token:,} bytes)"
    if result.kv_bytes_per_token < 0.1 * 1024**2:
        per_token = f"{result.kv_bytes_per_token / 1024:.2f} KiB ({result.kv_bytes_per_token:,} bytes)"
    return "\n".join(
        [
            f"{result.model} ({result.source})",
            f"  {dimensions}",
            f"  KV per token  {per_token}",
            f"  weights       {format_size(result.weights_bytes)} ({result.weights_from})",
            f"  KV memory     {format_size(result.kv_memory_bytes)} of {format_size(result.memory_bytes)}"
            f" = {paged.num_blocks:,} blocks of {result.block_size} slots",
            f"  requests      {result.used:,} tokens used, {result.reserve:,} reserved",
            "",
            *(f"  {label:<22}{left:<20}{right}".rstrip() for label, left, right in rows),
            "",
            verdict,
        ]
    )


def capacity_command(
    model: Annotated[str, typer.Option(help="A preset's name, a directory with config.json, or such a file.")],
    memory: Annotated[str, typer.Option(help="Memory of the device, like 80GiB.")],
    used: Annotated[str, typer.Option(help="Tokens that a request really holds, prompt and answer.")],
    reserve: Annotated[
        str | None, typer.Option(help="Tokens that a contiguous server reserves a request; default: the whole context.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="What the weights take, like 26GiB; default: size of the weight files, else parameters x dtype."
        ),
    ] = None,
    block_size: Annotated[str, typer.Option(help=f"Slots of a block: {', '.join(map(str, BLOCK_SIZES))}.")] = "16",
    kv_dtype: Annotated[str, typer.Option(help=f"Of K and V: {', '.join(DTYPE_BYTES)}.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How many requests fit in a memory, reserved in one piece each against paged.

    Counts KV memory alone: what remains of --memory after --weights, activations not deducted.
    """
    try:
        shape = find(model) or _from_path(model)
        result = capacity(
            shape,
            memory=_size("--memory", memory),
            weights=None if weights is None else _size("--weights", weights),
            reserve=_reserve(reserve, shape),
            used=_count("--used", used),
            block_size=_block_size(block_size),
            kv_dtype=_kv_dtype(kv_dtype),
        )
    except (CapacityError, ShapeError) as error:
        print(sanitize(f"pagechat-bench capacity: {error}"), file=sys.stderr)
        raise typer.Exit(2) from None
    if shape.max_context is not None and result.reserve > shape.max_context:
        note = f"note: {shape.name} has a context of {shape.max_context:,} tokens; --reserve is more"
        print(sanitize(note), file=sys.stderr)
    print(msgspec.json.format(msgspec.json.encode(result)).decode() if as_json else sanitize(describe(result)))


def _from_path(model: str) -> ModelShape:
    if not Path(model).exists():
        raise ShapeError(f"{model[:100]!r} is neither a path here nor a preset ({', '.join(PRESETS)})")
    return read_config(Path(model))


def _size(option: str, text: str) -> int:
    try:
        size = parse_size(text)
    except SizeError as error:
        raise CapacityError(f"{option}: {error}") from None
    if size == 0:
        raise CapacityError(f"{option} is nothing")
    return size


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 12 and int(text) > 0):
        raise CapacityError(f"{option}: {text[:40]!r} is not a number of tokens, 1 or more")
    return int(text)


def _reserve(text: str | None, shape: ModelShape) -> int:
    if text is not None:
        return _count("--reserve", text)
    if shape.max_context is None:
        raise CapacityError(f"the config of {shape.name} names no context length: give --reserve")
    return shape.max_context


def _block_size(text: str) -> int:
    if text not in map(str, BLOCK_SIZES):
        raise CapacityError(f"--block-size: {text[:40]!r} is not one of {', '.join(map(str, BLOCK_SIZES))}")
    return int(text)


def _kv_dtype(text: str) -> str:
    if text not in DTYPE_BYTES:
        raise CapacityError(f"--kv-dtype: {text[:40]!r} is not one of {', '.join(DTYPE_BYTES)}")
    return text
