"""`pagechat-bench quality`: perplexity as transformers computes it, agreement, and texts that are too short."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from engine import models
from engine.process.config import EngineConfig
from pagechat.bench.quality import PASSAGE, Reading, first_tokens, quality_command, read
from tests.models import tiny_llama


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(quality_command)
    return CliRunner().invoke(app, arguments)


def transformers_logits(directory: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        logits: torch.Tensor = AutoModelForCausalLM.from_pretrained(directory)(torch.tensor([ids])).logits[0]
    return logits


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    return math.exp(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@pytest.mark.parametrize("chunk", [7, 29, 30, 512])  # of 30 tokens: the last chunk full, one token, and all of it
def test_a_text_is_read_as_transformers_reads_it_however_it_is_cut(tmp_path: Path, chunk: int) -> None:
    directory, ids = tiny_llama(tmp_path), list(range(3, 33))
    config = EngineConfig(model=str(directory), device="cpu", dtype="float32", cpu_kernels="torch")
    reference = transformers_logits(directory, ids)

    reading = read(models.load(directory, config, lambda _: None), ids, chunk)

    assert reading.perplexity == pytest.approx(perplexity(reference, ids), rel=1e-4)
    assert reading.best == reference.argmax(1).tolist()


def test_agreement_is_the_share_of_places_with_the_same_token() -> None:
    reading = Reading(2.0, [5, 6, 7, 8])

    assert reading.agreement(Reading(3.0, [5, 0, 7, 8])) == 0.75
    assert reading.agreement(reading) == 1


def test_each_weights_dtype_is_compared_with_the_checkpoints_own_numbers(tmp_path: Path) -> None:
    directory, text = tiny_llama(tmp_path), tmp_path / "text.txt"
    text.write_text(PASSAGE.read_text(encoding="utf-8")[:2000], encoding="utf-8")
    ids = first_tokens(directory, text.read_text(encoding="utf-8"), 200)
    reference = transformers_logits(directory, ids)
    arguments = ["--model", str(directory), "--text", str(text), "--tokens", "200", "--weights-dtype", "auto"]

    found = json.loads(run(*arguments, "--json").stdout)

    exact, auto = found["rows"]
    assert (found["text"], found["tokens"]) == ("text.txt", 200)
    assert (exact["asked"], exact["ratio"], exact["agreement"]) == ("exact", 1, 1)
    assert exact["numbers"].startswith("float32")
    assert exact["perplexity"] == pytest.approx(perplexity(reference, ids), rel=1e-3)
    assert auto["asked"] == "auto"
    assert auto["perplexity"] == pytest.approx(exact["perplexity"] * auto["ratio"])
    assert auto["perplexity"] == pytest.approx(exact["perplexity"], rel=0.1)
    assert 0.8 < auto["agreement"] <= 1


def test_the_passage_is_long_enough_for_what_is_read_of_it_by_default(smollm2: Path) -> None:
    assert len(first_tokens(smollm2, PASSAGE.read_text(encoding="utf-8"), 2048)) == 2048


def test_a_text_or_a_context_that_is_too_short_is_said(tmp_path: Path) -> None:
    model, text = str(tiny_llama(tmp_path)), tmp_path / "text.txt"  # a context of 512
    text.write_text("a b")

    short = run("--model", model, "--text", str(text), "--tokens", "100")
    long = run("--model", model)

    assert (short.exit_code, short.stdout, long.exit_code, long.stdout) == (2, "", 2, "")
    assert "the text has 3 tokens, not 100: say --tokens 3" in short.stderr
    assert "this model reads 512 tokens at most, not 2,048: say --tokens 512" in long.stderr


@pytest.mark.parametrize("arguments", [["--weights-dtype", "int3"], ["--text", "missing.txt"], ["--tokens", "1"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
