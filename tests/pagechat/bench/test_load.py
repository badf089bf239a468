"""`pagechat-bench load`: what it asks, what it counts, and that a server's errors are figures and no end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagechat.bench import load
from pagechat.bench.load import Options, Quantiles, load_command, plan, quantiles, summarise
from pagechat.bench.sse import Streamed
from pagechat.client import EngineClient
from tests.daemons import serving

OPTIONS = Options(
    concurrency=4, model=None, key=None, ignore_eos=False, timeout_s=30, goodput_ttft_ms=100, goodput_itl_ms=50
)


def test_each_round_has_its_own_prompts_and_every_server_the_same() -> None:
    lengths = [(5, 2)] * 3
    assert plan(lengths, None, 1) == plan(lengths, None, 1)
    assert plan(lengths, None, 1) != plan(lengths, None, 2)
    assert [len(one.prompt.split()) for one in plan(lengths, None, 1)] == [5, 5, 5]
    arrivals = [one.at_s for one in plan([(1, 1)] * 1000, 10.0, 0)]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(100, rel=0.15)  # a Poisson process of ten a second


async def test_another_seed_asks_other_things(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def note(url: str, planned: list[load.Planned], options: Options) -> None:
        asked.append(planned)

    monkeypatch.setattr(load, "run_round", note)
    for seed in (0, 0, 7):
        await load._rounds(["a"], [(5, 2)] * 3, None, 1, seed, OPTIONS)

    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_quantiles_are_nearest_ranks() -> None:
    assert quantiles([number / 1e3 for number in range(1, 101)]) == Quantiles(51, 96, 100)
    assert quantiles([]) == Quantiles(0, 0, 0)


def test_a_round_is_counted() -> None:
    quick = Streamed(sent=0.0, arrivals=[0.05, 0.06, 0.07], ended=0.07, prompt_tokens=9, completion_tokens=3)
    late = Streamed(sent=0.0, arrivals=[0.2, 0.21], ended=0.21, prompt_tokens=9, completion_tokens=2)
    slow = Streamed(sent=0.0, arrivals=[0.05, 0.25], ended=0.25, prompt_tokens=9, completion_tokens=2)
    broken = Streamed(sent=0.0, error="status 500")
    found = summarise([quick, late, slow, broken], 2.0, OPTIONS)
    assert (found.completed, found.failed, found.good) == (3, 1, 1)
    assert (found.prompt_tokens, found.completion_tokens) == (27, 7)
    assert found.errors == ["status 500"]
    assert found.ttft_ms.p99 == pytest.approx(200)
    assert found.itl_ms.p99 == pytest.approx(200)


@pytest.mark.usefixtures("fake_engine")
def test_servers_are_measured_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving("--http", "127.0.0.1:0"):
        with EngineClient.connect() as client:
            client.snapshot()
            url = f"{client.status().http}/v1"
        nobody = "http://127.0.0.1:9/v1"
        options: Any = {"requests": 6, "prompt": 8, "output": 5, "rounds": 2, "concurrency": 3}
        load_command([url, nobody], **options, svg=tmp_path / "plot.svg", as_json=True)
        found = json.loads(capsys.readouterr().out)
        load_command([url, nobody], **options)
        table = capsys.readouterr().out
    assert [one["completed"] for one in found["servers"][url]] == [6, 6]
    assert [one["completion_tokens"] for one in found["servers"][url]] == [30, 30]
    assert [one["failed"] for one in found["servers"][nobody]] == [6, 6]
    assert found["servers"][nobody][0]["errors"]
    assert url in table
    assert "TTFT p50" in table
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")
