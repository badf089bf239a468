"""Which block size is recommended, and on what grounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from engine.process.config import BLOCK_SIZES
from pagechat.bench.pool import Load, measure
from pagechat.bench.tune import Row, recommend, tune_command

app = typer.Typer()
app.command()(tune_command)


def row(block_size: int, held: float, cached: float = 0.5) -> Row:
    return Row(
        block_size=block_size,
        num_blocks=1000,
        utilisation=0.95,
        internal_waste=0.05,
        requests_held=held,
        cached_share=cached,
        table_blocks=100 / block_size,
        bookkeeping_us=16 / block_size,
        preemptions=0,
    )


@pytest.mark.parametrize(
    ("rows", "recommended"),
    [
        # as many requests whatever the size: the shortest tables
        ([row(4, 100), row(8, 100), row(16, 100), row(32, 100)], 32),
        # 32 loses more than a hundredth of the requests
        ([row(4, 100), row(8, 100), row(16, 99.5), row(32, 98)], 16),
        # 16 finds fewer cached tokens than a hundredth less
        ([row(4, 100, 0.50), row(8, 100, 0.50), row(16, 100, 0.48)], 8),
        # 4 is measured, but no size the engine takes
        ([row(4, 100), row(8, 90), row(16, 80)], 8),
    ],
)
def test_the_largest_size_that_loses_next_to_nothing_is_recommended(rows: list[Row], recommended: int) -> None:
    assert recommend(rows)[0] == recommended


def test_each_rejected_size_is_told_what_it_loses() -> None:
    _, reasons = recommend([row(4, 100), row(8, 100), row(16, 90), row(32, 100, cached=0.25)])
    assert any(reason.startswith("16: 10.0% fewer requests") for reason in reasons)
    assert any(reason.startswith("32: 50.0% fewer cached prompt tokens") for reason in reasons)


def test_tune_measures_each_size_from_4_to_128_on_a_trace() -> None:
    result: Any = CliRunner().invoke(app, ["--trace", "alpaca-like", "--requests", "200", "--slots", "4096", "--json"])
    assert result.exit_code == 0, result.stderr
    tuning = json.loads(result.stdout)
    assert [row["block_size"] for row in tuning["rows"]] == [4, 8, 16, 32, 64, 128]
    assert all(row["num_blocks"] * row["block_size"] == 4096 for row in tuning["rows"])
    waste = [1 - row["utilisation"] for row in tuning["rows"]]
    assert waste == sorted(waste), "larger blocks leave more of themselves empty"
    assert tuning["recommended"] in BLOCK_SIZES
    assert tuning["reasons"]


def test_a_trace_that_cannot_be_read_is_refused_in_one_line() -> None:
    result: Any = CliRunner().invoke(app, ["--trace", "missing"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


def test_the_cost_of_scheduling_is_measured_with_and_without_accounting() -> None:
    loads = [
        Load(num_blocks=400, sequences=8, prompt=32, output=20, accounting=accounting) for accounting in (False, True)
    ]
    for load, cost in zip(loads, measure(loads, rounds=2), strict=True):
        assert cost.load == load
        assert 0 < cost.decode_us_least <= cost.decode_us <= cost.decode_us_most
        assert cost.prefill_us > 0
