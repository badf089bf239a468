"""`pagechat-bench engine`: what is asked, what is compared, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from pagechat.bench.engine import engine_command
from pagechat.bench.profile import KernelShare, StepProfile, _busy, _shares, table
from tests.models import tiny_llama


def bench(*arguments: str) -> tuple[int, str]:
    """Exit code and stdout."""
    import typer

    app = typer.Typer()
    app.command()(engine_command)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout


def test_lengths_of_a_file_are_asked_with_and_without_telemetry_and_those_that_do_not_fit_are_left_out(
    tmp_path: Path,
) -> None:
    model = tiny_llama(tmp_path)  # of 512 tokens
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("prompt_tokens,output_tokens\n20,4\n600,4\n30,3\n")
    arguments = ["--model", str(model), "--lengths", str(lengths), "--rounds", "1", "--num-blocks", "100"]

    code, out = bench(*arguments, "--telemetry", "both", "--json")

    assert code == 0
    found = json.loads(out)
    assert found["requests"] == "the lengths of lengths.csv (1 beyond 512 tokens left out)"
    assert [one["what"] for one in found["measurements"]] == ["paged", "paged, no telemetry"]
    assert [one["running_peak"] for one in found["measurements"]] == [2, 2]
    assert found["profiles"] == {}


def test_a_profile_needs_a_gpu_and_lengths_a_request_that_fits(tmp_path: Path) -> None:
    model = str(tiny_llama(tmp_path))
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("600,4\n")

    assert bench("--model", model, "--profile", "--num-blocks", "100")[0] == 2
    assert bench("--model", model, "--lengths", str(lengths), "--num-blocks", "100")[0] == 2


def event(name: str, start: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start))


def test_kernels_are_added_up_and_time_in_which_several_run_counts_once_as_busy() -> None:
    events = [event("a", 0, 10), event("b", 5, 25), event("a", 40, 50), event("c", 42, 44)]

    assert _busy(events) == 35  # type: ignore[arg-type]
    assert _shares(events, steps=2) == [  # type: ignore[arg-type]
        KernelShare(name="a", calls=1.0, milliseconds=0.01),
        KernelShare(name="b", calls=0.5, milliseconds=0.01),
        KernelShare(name="c", calls=0.5, milliseconds=0.001),
    ]


def test_a_profile_in_words() -> None:
    kernels = [KernelShare(name=f"kernel {n}", calls=1, milliseconds=1.0) for n in range(16)]
    profile = StepProfile(phase="decode", steps=8, tokens=64, milliseconds=20, busy=0.8, kernels=kernels)

    lines = table([profile]).splitlines()

    assert lines[1] == "decode, mean of 8 steps: 20.00 ms, 64 tokens, GPU busy 80% of it"
    assert lines[-1].split() == ["2.000", "ms", "2.0", "x", "2", "other", "kernels"]
    assert msgspec.json.decode(msgspec.json.encode(profile), type=StepProfile) == profile


@pytest.mark.parametrize("arguments", [["--batch", "0"], ["--policy", "none"], ["--block-size", "7"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    assert bench(*arguments)[0] == 2
