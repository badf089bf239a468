"""`pagechat-bench context`: which cells fit, what a cell is, the line through them, and the chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import typer
from typer.testing import CliRunner

from engine import models
from engine.execution.runner import Runner
from engine.process.config import EngineConfig
from pagechat.bench import context
from pagechat.bench.context import Cell, Fit, fit, scattered_step, time_steps, what_fits
from pagechat.bench.plot import Line, as_svg, round_up
from tests.models import tiny_llama


@pytest.fixture(autouse=True)
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "SECONDS", 0.02)


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(context.context_command)
    return CliRunner().invoke(app, arguments)


def cell(batch: int, length: int, ms: float) -> Cell:
    return Cell(batch=batch, context=length, ms=ms, fastest_ms=ms, slowest_ms=ms, steps=3, tokens_per_s=1e3 / ms)


def texts(svg: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def heights(svg: str) -> list[list[float]]:
    """y of the points of each line."""
    lines = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline")
    return [[float(point.split(",")[1]) for point in line.attrib["points"].split()] for line in lines]


def test_the_line_through_cells_that_lie_on_one_is_that_one() -> None:
    found = fit([cell(4, length, 10 + 0.005 * length) for length in (128, 512, 2048)])

    assert (found.batch, found.ms, found.ms_per_token) == (4, pytest.approx(10), pytest.approx(0.005))
    assert found.deviation == pytest.approx(0, abs=1e-12)


def test_the_deviation_is_the_largest_over_what_was_measured() -> None:
    # Through (1, 1), (2, 4), (3, 4): slope 1.5, mean (2, 3), so 0 + 1.5 x, which is 0.5, 1 and 0.5 away.
    found = fit([cell(1, 1, 1.0), cell(1, 2, 4.0), cell(1, 3, 4.0)])

    assert (found.ms, found.ms_per_token) == (pytest.approx(0), pytest.approx(1.5))
    assert found.deviation == pytest.approx(0.5)  # at the first: 0.5 of 1; at the second 1 of 4


def test_what_the_model_cannot_read_or_memory_not_hold_is_left_out_and_said() -> None:
    # 100 tokens are 7 blocks of 16, 200 are 13; with the null block, 2 chats of 100 are 15 blocks of 16 MiB.
    cells, left_out = what_fits(
        [1, 2, 4], [100, 200, 300], longest=200, token_bytes=1 << 20, block_size=16, free=15 << 24
    )

    assert cells == [(1, 100), (1, 200), (2, 100)]
    assert left_out == [
        "context 300: the model reads 200 tokens",
        "batch 2, context 200: 432 MiB of KV, 240 MiB may be taken",
        "batch 4, context 100: 464 MiB of KV, 240 MiB may be taken",
        "batch 4, context 200: 848 MiB of KV, 240 MiB may be taken",
    ]


def test_chats_have_blocks_of_their_own_scattered_over_the_pool_and_the_step_reads_all_of_them(tmp_path: Path) -> None:
    config = EngineConfig(model="tiny", device="cpu", dtype="float32", cpu_kernels="torch")
    runner = Runner(models.load(tiny_llama(tmp_path), config, lambda _: None), num_blocks=24, block_size=8)
    for pool in runner.kv:
        pool.normal_(generator=torch.Generator().manual_seed(0))

    step = scattered_step(runner, 3, 57)  # in 8 blocks each
    tables = [[block for row, _, block in step.patches.tolist() if row == chat] for chat in range(3)]

    assert sorted(block for table in tables for block in table) == list(range(1, 25))
    assert all(table != sorted(table) for table in tables)
    assert step.is_decode
    assert step.starts.tolist() == [56] * 3
    assert len(runner.execute(step).tokens) == 3
    # Every block matters: with one of them not a number, its chat's last token no longer has a finite value.
    for table in tables:
        kept = runner.kv[0][table[0], 1].clone()
        runner.kv[0][table[0], 1] = float("nan")
        runner.execute(step)
        assert [bool(runner.kv[1][other[-1], :, :, 0].isnan().any()) for other in tables] == [
            other is table for other in tables
        ]
        runner.kv[0][table[0], 1] = kept


def test_a_first_step_is_not_counted_and_one_is_measured_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, calls = [0.0], []

    def step() -> None:
        calls.append(clock[0])
        clock[0] += 7.0 if len(calls) == 1 else 0.25

    monkeypatch.setattr(context.time, "perf_counter", lambda: clock[0])

    assert time_steps(step, seconds=0.1) == [250.0]
    assert time_steps(step, seconds=1.0) == [250.0] * 4


def test_cells_are_measured_fitted_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "plot.svg"
    arguments = ["--model", str(tiny_llama(tmp_path)), "--batch", "2,1", "--context", "64,16,600,512"]

    result = run(*arguments, "--cpu-kernels", "torch", "--plot", str(picture), "--json")

    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [(one["batch"], one["context"]) for one in found["cells"]] == [
        (batch, length) for batch in (1, 2) for length in (16, 64, 512)
    ]
    for one in found["cells"]:
        assert 0 < one["fastest_ms"] <= one["ms"] <= one["slowest_ms"]
        assert one["steps"] >= 3
        assert one["tokens_per_s"] == pytest.approx(1000 / one["ms"])
    assert found["left_out"] == ["context 600: the model reads 512 tokens"]
    cells = [Cell(**one) for one in found["cells"]]
    assert [Fit(**one) for one in found["fits"]] == [fit(cells[:3]), fit(cells[3:])]
    assert {"1 chat", "2 chats", "ms/step", "tokens of context of each chat", "16", "512"} <= set(
        texts(picture.read_text())
    )


def test_a_table_says_each_cell_the_line_and_what_was_left_out(tmp_path: Path) -> None:
    result = run(
        *("--model", str(tiny_llama(tmp_path)), "--batch", "1", "--context", "16,32,48,513", "--cpu-kernels", "torch")
    )

    lines = result.stdout.splitlines()
    assert lines[0].startswith("tiny-llama, ")
    assert [line.split()[:2] for line in lines[3:6]] == [["1", "16"], ["1", "32"], ["1", "48"]]
    assert lines[7].startswith("batch 1: ")
    assert lines[8] == "left out: context 513: the model reads 512 tokens"


def test_the_axis_of_a_chart_ends_where_it_is_told_and_is_written_as_it_is_told() -> None:
    lines = [Line("one", [(0, 0.0), (10, 40.0), (20, 80.0)])]

    numbers = as_svg(lines, title="t", x_label="x", y_label="ms", top=80.0, ticks=",g")
    shares = as_svg([Line("one", [(0, 0.0), (10, 0.5), (20, 1.0)])], title="t", x_label="x", y_label="share")

    assert texts(numbers)[1:7] == ["0", "16", "32", "48", "64", "80"]
    assert texts(shares)[1:7] == ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert heights(numbers) == heights(shares) == [[336.0, 196.0, 56.0]]


@pytest.mark.parametrize(("value", "end"), [(278.3, 300), (300, 300), (0.0421, 0.05), (1, 1), (9.7, 10)])
def test_an_axis_ends_at_a_number_of_one_digit_that_is_not_smaller(value: float, end: float) -> None:
    assert round_up(value) == pytest.approx(end)


@pytest.mark.parametrize(
    "arguments",
    [["--batch", "0"], ["--context", "1,x"], ["--block-size", "7"], ["--dtype", "int8"], ["--weights-dtype", "int3"]],
)
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    result = run(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("pagechat-bench: ")


def test_nothing_to_measure_and_no_place_for_the_chart_are_said(tmp_path: Path) -> None:
    model = str(tiny_llama(tmp_path))
    nothing = run("--model", model, "--context", "513", "--cpu-kernels", "torch")
    arguments = ["--model", model, "--batch", "1", "--context", "16", "--cpu-kernels", "torch"]
    nowhere = run(*arguments, "--plot", str(tmp_path / "missing" / "plot.svg"))

    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert "nothing that fits is left to measure" in nothing.stderr
    assert nowhere.exit_code == 1
    assert "1       16" in nowhere.stdout  # what was measured is not lost
    assert "plot.svg" in nowhere.stderr
