"""What `pagechat-daemon status` tells people."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol import ModelInfo
from pagechat.commands.status import as_data, as_text
from pagechat.protocol import Status, ThroughputStatus

MODEL = ModelInfo(
    name="smollm2", path="/nowhere", architecture="LlamaForCausalLM", parameters=134_515_008, vocab_size=256,
    max_context=2048, dtype="float32", device="cpu",
)  # fmt: skip


def status(kernels: str, detail: str) -> Status:
    return Status(
        ticket=1, state="ready", pid=1, daemon_version="1", uptime_s=1, device="cpu", load=None, error=None,
        engine_pid=2, pool=None, scheduler=None,
        throughput=ThroughputStatus(generated_tokens_per_s=0, prompt_tokens_per_s=0),
        model=msgspec.structs.replace(MODEL, kernels=kernels, kernels_detail=detail),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "detail", "line"),
    [
        ("C++", "AVX2, compiled by g++ 12.2.0", "C++: AVX2, compiled by g++ 12.2.0"),
        ("torch", "there is no C++ compiler; install g++", "torch, not C++: there is no C++ compiler; install g++"),
        (
            "torch",
            "c++ failed: \x1b[31mx\ny",
            "torch, not C++: c++ failed: \u241b[31mx y",
        ),  # no terminal obeys a compiler
    ],
)
def test_which_kernels_run_and_why_is_told(kernels: str, detail: str, line: str) -> None:
    found = status(kernels, detail)

    (told,) = (row for row in as_text(found).splitlines() if row.startswith("kernels "))
    assert told.split(maxsplit=1)[1] == line
    assert as_data(found)["model_info"]["kernels_detail"] == detail


def test_on_a_gpu_there_is_nothing_to_tell() -> None:
    assert "kernels " not in as_text(status("Triton", ""))
