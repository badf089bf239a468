"""`pagechat-bench quality`: what fewer bits a weight cost, as perplexity of a text and agreement on the next token.

Each way to hold the weights reads the text once, and is compared with the checkpoint's own numbers: those weights in
full, everything else in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from engine.process.config import EngineConfig
from pagechat.bench.loading import checked, narrate, say, stop
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.simulate import print_result

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel

PASSAGE = Path(__file__).with_name("passage.txt")
"""What is read where nothing else is given: always the same, so that figures of different days compare."""

CHUNK = 512
"""Tokens whose logits are in memory at once."""

BLOCK_SIZE = 16


class Row(msgspec.Struct, frozen=True, kw_only=True):
    asked: str
    """Of --weights-dtype; "exact" for the checkpoint's own numbers."""
    numbers: str
    """What was computed with."""
    perplexity: float
    ratio: float
    """Perplexity over the exact one."""
    agreement: float
    """Share of the places at which the most likely next token is the exact one."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `quality --json`."""

    model: str
    text: str
    """Name of the file."""
    tokens: int
    rows: list[Row]
    threads: int
    torch: str
    machine: Machine


@dataclass(frozen=True)
class Reading:
    """What a model makes of a text."""

    perplexity: float
    best: list[int]
    """After each token, the most likely next one."""

    def agreement(self, other: Reading) -> float:
        """Share of the places at which both have the same token."""
        return sum(a == b for a, b in zip(self.best, other.best, strict=True)) / len(self.best)


def read(model: LoadedModel, ids: list[int], chunk: int = CHUNK) -> Reading:
    """One pass over the tokens, at least two, through a pool of their own.

    Perplexity is exp of the mean negative log likelihood of each token but the first, after those before it.
    """
    import torch

    from kernels.backend import SpanTable

    config, blocks = model.config, -(-len(ids) // BLOCK_SIZE)
    kv = [
        model.backend.new_kv(blocks, config.kv_heads, BLOCK_SIZE, config.head_dim, model.kv_dtype)
        for _ in range(config.num_layers)
    ]
    tokens = torch.tensor(ids, device=model.device)
    loss, best = 0.0, []
    with torch.inference_mode():
        for start in range(0, len(ids), chunk):
            part, following = tokens[start : start + chunk], tokens[start + 1 : start + chunk + 1]
            plan = model.backend.plan_attention(
                [SpanTable(start, len(part), range(1, blocks + 1))],
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                block_size=BLOCK_SIZE,
                dtype=model.dtype,
            )
            logits = model.decoder.logits(model.decoder.forward(model.decoder.embed(part), kv, plan)).float()
            best += logits.argmax(1).tolist()
            loss += float(torch.nn.functional.cross_entropy(logits[: len(following)], following, reduction="sum"))
    return Reading(math.exp(loss / (len(ids) - 1)), best)


def first_tokens(directory: Path, text: str, count: int) -> list[int]:
    """Of a text, by the tokenizer of the model in `directory`. Raises ValueError where the text or the model's context
    is shorter."""
    from tokenizers import Tokenizer

    from engine.models.registry import read_config

    longest = read_config(directory).max_context
    if count > longest:
        raise ValueError(f"this model reads {longest:,} tokens at most, not {count:,}: say --tokens {longest}")
    ids: list[int] = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids
    if len(ids) < count:
        hint = f": say --tokens {len(ids)}" if len(ids) > 1 else ""
        raise ValueError(f"the text has {len(ids):,} tokens, not {count:,}{hint}")
    return ids[:count]


def compare(path: Path, configs: dict[str, EngineConfig], ids: list[int]) -> list[Row]:
    """Of the model in `path`, one after the other in memory; the first is what the others are measured against."""
    from engine import models

    rows: list[Row] = []
    exact: Reading | None = None
    for asked, config in configs.items():
        model = models.load(path, config, narrate)
        reading = read(model, ids)
        exact = exact or reading
        ratio = reading.perplexity / exact.perplexity
        rows.append(
            Row(
                asked=asked,
                numbers=model.info.numbers,
                perplexity=reading.perplexity,
                ratio=ratio,
                agreement=reading.agreement(exact),
            )
        )
        say(f"{asked}: perplexity {reading.perplexity:.3f}, {ratio:.2%} of the exact one")
    return rows


def quality_command(
    model: Annotated[str, typer.Option(help="Model: a name, a directory or a .gguf file.")] = "smollm2",
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A text in UTF-8. [a passage that comes with pagechat]")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of it that are read, from its beginning.")] = 2048,
    weights_dtype: Annotated[
        str, typer.Option(help="What to compare, comma-separated: auto, float32, bf16, int8, int4.")
    ] = "auto,bf16,int8",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What the weights' dtypes of a CPU cost: perplexity of a text, and how often the most likely next token is the
    same, against the checkpoint's own numbers with everything else in float32.

    Runs on the CPU, also where there is a GPU. All but auto need the C++ kernels. Exit codes: 1 the model cannot be
    loaded; 2 wrong usage, or a text or a context that is too short.
    """
    try:
        exact = EngineConfig(model=model, device="cpu", dtype="float32")
        configs = {"exact": exact} | {
            name: checked(EngineConfig(model=model, device="cpu", weights_dtype=cast(Any, name)))
            for name in weights_dtype.split(",")
        }
        words = (text or PASSAGE).read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        stop(error, 2)
    import torch

    from engine import models

    try:
        path = models.resolve(model, narrate)
        try:
            ids = first_tokens(path, words, tokens)
        except ValueError as error:
            stop(error, 2)
        rows = compare(path, configs, ids)
    except models.ModelError as error:
        stop(error, 1)
    result = Quality(
        model=model,
        text=text.name if text else PASSAGE.name,
        tokens=len(ids),
        rows=rows,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        machine=this_machine(),
    )
    print_result(result, table, as_json)


def table(result: Quality) -> str:
    """For people."""
    width = max(len(row.numbers) for row in result.rows)
    lines = [
        f"{result.model}, the first {result.tokens:,} tokens of {result.text}, {result.threads} threads",
        "",
        f"{'weights':<9}{'computed with':<{width}}{'perplexity':>12}{'of exact':>11}{'same next token':>17}",
    ]
    lines += [
        f"{row.asked:<9}{row.numbers:<{width}}{row.perplexity:>12.3f}{row.ratio:>11.2%}{row.agreement:>17.2%}"
        for row in result.rows
    ]
    return "\n".join([*lines, "", f"torch {result.torch}", result.machine.line()])
