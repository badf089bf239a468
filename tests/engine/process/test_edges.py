"""Every setting of the engine at its edges: it starts and answers, or is refused by name in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.execution.runner import Runner
from engine.execution.tables import TableRows, check_step
from engine.models import ModelError, load
from engine.models.loading.load import LoadedModel
from engine.process import memory
from engine.process.build import build
from engine.process.check import check_idle
from engine.process.config import BLOCK_SIZES, EngineConfig
from engine.process.memory import largest_step
from engine.protocol import AddRequest, SamplingParams
from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.commands.options import engine_config
from tests.engine.fakes import run
from tests.models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 16 * 2 * 2 * 2 * 16 * 4
"""Bytes of a block of the tiny model in float32: slots, keys and values, layers, key/value heads, head_dim, float32."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


STARTS: list[dict[str, Any]] = [
    *({"block_size": size} for size in BLOCK_SIZES),
    *({"block_size": size, "num_blocks": 1} for size in BLOCK_SIZES),
    {"num_blocks": 1},
    {"num_blocks": 3},
    {"kv_memory": 2 * BLOCK},
    {"kv_memory": 3 * BLOCK - 1},
    {"max_context": 2},
    {"max_context": 17},
    {"max_context": 512},
    {"step_tokens": 1},
    {"step_tokens": 2, "max_running": 8192},
    {"step_tokens": 2**20},
    {"max_running": 1},
    {"max_running": 1, "step_tokens": 1},
    {"max_running": 8192, "step_tokens": 8192},
    {"swap_memory": 0},
    {"swap_memory": BLOCK},
    {"swap_memory": 10 * BLOCK + 1, "num_blocks": 4},
    {"threads": 1},
    {"threads": 256},
    {"prefix_cache": False},
    {"policy": "contiguous-max"},
    {"policy": "contiguous-pow2", "num_blocks": 1},
    {"policy": "contiguous-oracle", "swap_memory": BLOCK},
    {"dtype": "bfloat16"},
    {"dtype": "float16"},
    {"device": "cpu"},
]

OUT_OF_BOUNDS: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, name) for name in ("num_blocks", "step_tokens", "max_running", "threads") for value in (0, -1)),
    *(({name: 10**30}, name) for name in ("num_blocks", "step_tokens", "max_running", "threads", "max_context")),
    ({"num_blocks": 2**31 - 1}, "num_blocks"),
    ({"step_tokens": 2**20 + 1}, "step_tokens"),
    ({"max_running": 8193}, "max_running"),
    ({"threads": 10_000}, "threads"),
    ({"max_context": 0}, "max_context"),
    ({"max_context": 1}, "max_context"),
    ({"max_context": -5}, "max_context"),
    ({"kv_memory": 0}, "kv_memory"),
    ({"kv_memory": -1}, "kv_memory"),
    ({"swap_memory": -1}, "swap_memory"),
    *(({"block_size": size}, "block_size") for size in (0, 1, -16, 7, 17, 24, 256, 10**30)),
]

TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"num_blocks": 2**31 - 2}, "blocks of 16 tokens take"),
    ({"kv_memory": 1 << 60}, "for KV, but"),
    ({"kv_memory": 1}, "Not even one block"),
    ({"kv_memory": 2 * BLOCK - 1}, "Not even one block"),
    ({"max_context": 513}, "512 at most"),
    ({"swap_memory": 1}, "swap-memory 0.0 MiB holds no block"),
    ({"swap_memory": BLOCK - 1}, "holds no block"),
    ({"swap_memory": 1 << 60}, "of host memory are free"),
    ({"device": "tpu"}, "'tpu' is not supported"),
    ({"device": "cuda:99"}, "CUDA"),
]


def config_of(model: Path, settings: dict[str, Any]) -> EngineConfig:
    given = {"dtype": "float32", "cpu_kernels": "torch", "device": "cpu", **settings}
    return EngineConfig(model=str(model), **given)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("settings", STARTS, ids=str)
def test_it_starts_and_answers(tiny: Path, settings: dict[str, Any]) -> None:
    engine = build(config_of(tiny, settings), lambda progress: None)
    sampling = SamplingParams(max_tokens=3, temperature=0, seed=0)
    for number in range(2):
        prompt = (5,) if engine.model.max_context == 2 else (5, 6, 7)
        engine.core.add(AddRequest(request_id=str(number), session="", prompt=prompt, sampling=sampling))
    for outputs in run(engine.core).values():
        assert outputs[-1].finish_reason == "length", outputs[-1].message
    check_idle(engine.core)


@pytest.mark.parametrize(("settings", "name"), OUT_OF_BOUNDS, ids=str)
def test_a_number_out_of_bounds_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    option = name.replace("_", "-")
    with pytest.raises(ValueError, match=f"^{option} must be [^\n]+$"):
        EngineConfig(**settings)
    with pytest.raises(msgspec.ValidationError, match=option):  # as `LLM` and the engine process read it
        msgspec.convert(settings, EngineConfig)
    if name not in ("kv_memory", "swap_memory"):  # which are written as sizes
        with pytest.raises(CommandError, match=option) as caught:
            engine_config(**{key: str(value) if key == "block_size" else value for key, value in settings.items()})
        assert caught.value.exit_code == exits.USAGE


@pytest.mark.parametrize(
    "given", [{"kv_memory": "0"}, {"kv_memory": "-1"}, {"swap_memory": "-1"}, {"kv_memory": "1e9"}]
)
def test_a_size_that_is_none_is_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(CommandError, match=next(iter(given)).replace("_", "-")) as caught:
        engine_config(**given)
    assert caught.value.exit_code == exits.USAGE


@pytest.mark.parametrize("given", [{"dtype": "int8"}, {"weights_dtype": "x"}, {"cpu_kernels": "x"}, {"policy": "x"}])
def test_a_word_that_is_none_is_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(CommandError) as caught:
        engine_config(**given)
    assert caught.value.exit_code == exits.USAGE
    name = next(iter(given))
    assert name in str(caught.value) or name.replace("_", "-") in str(caught.value)


@pytest.mark.parametrize(("settings", "words"), TOO_MUCH, ids=str)
def test_what_this_machine_or_model_cannot_do_is_refused_with_the_numbers(
    tiny: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build(config_of(tiny, settings), lambda progress: None)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_on_a_cpu_the_pool_and_swap_memory_are_of_one_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 100 * BLOCK)
    model = load(tiny, config_of(tiny, {}), lambda progress: None)
    config = config_of(tiny, {"num_blocks": 59, "swap_memory": 40 * BLOCK})
    assert memory.choose_host_slots(config, model, 59) == 40
    with pytest.raises(ModelError, match="beside a pool of"):
        memory.choose_host_slots(config, model, 60)


# -- the largest step ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tiny: Path) -> LoadedModel:
    return load(tiny, config_of(tiny, {}), lambda progress: None)


@pytest.mark.parametrize("step_tokens", [1, 2, 7, 40, 600])
@pytest.mark.parametrize("max_running", [1, 2, 5, 100])
@pytest.mark.parametrize("max_context", [2, 33, 512])
def test_the_largest_step_is_as_large_as_a_step_may_be(step_tokens: int, max_running: int, max_context: int) -> None:
    sizes = {"step_tokens": step_tokens, "max_running": max_running, "max_context": max_context}
    step, blocks = largest_step(**sizes, block_size=8, vocab_size=512)
    sequences = min(max_running, step_tokens)
    assert len(step.rows) == len(step.sampled) == len(step.edits) == sequences
    assert len(step.token_ids) == min(step_tokens, sequences * max_context)
    assert step.counts.max() <= max_context
    assert (step.logprobs == 20).all()
    assert all(edit.mask is not None and len(edit.tokens) and len(edit.bias_tokens) for edit in step.edits)
    tables = TableRows()
    tables.apply(step)
    check_step(step, tables.tables(step, 8), 8, blocks, 512)
    assert blocks == len(step.patches)


def test_the_largest_step_can_be_computed(model: LoadedModel) -> None:
    step, blocks = largest_step(step_tokens=60, max_running=7, max_context=50, block_size=16, vocab_size=512)
    result = Runner(model, blocks, 16).execute(step)
    assert len(result.tokens) == 7
    assert all(0 <= token < 512 for token in result.tokens)
    assert [len(scores) for scores in result.prompt_scores] == [49]
    assert all(each is not None and len(each.top) == 20 for each in result.logprobs)
    assert np.isfinite([each.logprob for each in result.logprobs if each]).all()
