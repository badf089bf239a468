"""Runners that share nothing but the steps they get say the same, through any history."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import models
from engine.core import EngineCore
from engine.execution.runner import Runner
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from tests.engine.together import Together, random_history
from tests.models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS, BLOCK_SIZE, HOST_SLOTS = 26, 8, 20


def load(directory: Path, kernels: str) -> LoadedModel:
    config = EngineConfig(model=str(directory), device="cpu", dtype="float32", cpu_kernels=kernels)  # type: ignore[arg-type]
    return models.load(directory, config, lambda _: None)


@pytest.mark.parametrize("seed", range(5))
def test_torch_and_cpp_say_the_same(tmp_path: Path, seed: int) -> None:
    """In float32 both; a pool of 26 blocks, so that sequences are preempted, recomputed and swapped."""
    directory = tiny_llama(tmp_path)
    compiled = load(directory, "auto")
    if not compiled.compiled:
        pytest.skip("no C++ kernels here")
    first, second = (Runner(model, BLOCKS, BLOCK_SIZE, HOST_SLOTS) for model in (compiled, load(directory, "torch")))
    together = Together(first, second)
    core = EngineCore(
        together,
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        max_context=200,
        vocab_size=512,
        step_tokens=40,
        max_running=8,
        host_slots=HOST_SLOTS,
    )
    core.costs.token_s, core.costs.block_s = (1.0, 1e-9) if seed % 2 else (1e-9, 1.0)

    outputs = random_history(core, seed)

    assert len(outputs) > 30
    assert together.steps > 60
    assert core.scheduler.preemptions > 0
