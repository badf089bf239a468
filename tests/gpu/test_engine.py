"""The engine on a GPU says what it says on the CPU, in float32, whatever happens to its memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine import models
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.protocol import AddRequest, SamplingParams
from engine.runner import Runner
from tests.engine.fakes import run, tokens_of
from tests.models import tiny_llama

pytestmark = pytest.mark.gpu


def make_core(directory: Path, device: str, num_blocks: int, **settings: int | bool) -> EngineCore:
    model = models.load(directory, EngineConfig(model=str(directory), dtype="float32", device=device), lambda _: None)
    runner = Runner(model, num_blocks, 8, int(settings.get("host_slots", 0)))
    return EngineCore(
        runner,
        num_blocks=num_blocks,
        block_size=8,
        max_context=model.info.max_context,
        vocab_size=model.info.vocab_size,
        **settings,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("swap", [True, False])
def test_preempted_forked_and_cached_requests_say_what_the_cpu_says(tmp_path: Path, swap: bool) -> None:
    directory = tiny_llama(tmp_path)
    rng = random.Random(1)
    stem = [rng.randrange(512) for _ in range(17)]
    prompts = [[*stem, *(rng.randrange(512) for _ in range(rng.randint(1, 9)))] for _ in range(40)]
    gpu = make_core(directory, "cuda", 40, max_running=24, host_slots=60)
    gpu.costs.token_s, gpu.costs.block_s = (1.0, 1e-9) if swap else (1e-9, 1.0)
    cpu = make_core(directory, "cpu", 2000, prefix_cache=False)
    for core in (gpu, cpu):
        for name, prompt in enumerate(prompts):
            sampling = SamplingParams(max_tokens=24, temperature=0, seed=0)
            request = AddRequest(request_id=str(name), session="s", prompt=tuple(prompt), sampling=sampling, n=1)
            core.add(request)
    got, wanted = run(gpu), run(cpu)
    assert gpu.scheduler.preemptions > 0
    assert {name: tokens_of(outputs) for name, outputs in got.items()} == {
        name: tokens_of(outputs) for name, outputs in wanted.items()
    }
    gpu.blocks.check()
