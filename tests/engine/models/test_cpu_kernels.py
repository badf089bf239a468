"""A model on the CPU's C++ kernels: as torch computes it, as good as its checkpoint, the same alone and in a batch."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engine import models
from engine.models.loading import names
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from engine.protocol import LoadProgress
from kernels.backend import SpanTable, start_cpp_backend
from kernels.cpp import detail as cpp_detail
from pagechat.bench import quality
from tests.models import tiny_llama


def load(path: Path, **settings: object) -> LoadedModel:
    return models.load(path, EngineConfig(model=str(path), **settings), lambda _: None)  # type: ignore[arg-type]


def logits(
    model: LoadedModel,
    ids: list[int],
    chunk: int = 64,
    fused: bool = True,
    block_size: int = 16,
    memory: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """`memory`: for each layer's pool, as bytes that are zero."""
    config, blocks = model.config, -(-len(ids) // block_size)
    shape = (blocks + 1, 2, config.kv_heads, block_size, config.head_dim)
    nbytes = math.prod(shape) * model.kv_dtype.itemsize
    memory = memory or [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(config.num_layers)]
    kv = [part[:nbytes].view(model.kv_dtype).view(shape) for part in memory]
    decoder, rows = model.decoder, []
    kept = decoder._fused
    decoder._fused = kept if fused else None
    with torch.inference_mode():
        for start in range(0, len(ids), chunk):
            part = torch.tensor(ids[start : start + chunk])
            plan = model.backend.plan_attention(
                [SpanTable(start, len(part), range(1, blocks + 1))],
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                block_size=block_size,
                dtype=model.dtype,
            )
            rows.append(decoder.logits(decoder.forward(decoder.embed(part), kv, plan)))
    decoder._fused = kept
    return torch.cat(rows)


@pytest.fixture(scope="module")
def needs_kernels() -> None:
    started = start_cpp_backend(names.cache_dir() / "kernels", print)
    if isinstance(started, str):
        pytest.skip(started)


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm3", "qwen2"])
def test_all_layers_in_one_call_are_the_single_operations_and_torch_within_rounding(
    tmp_path: Path, family: str
) -> None:
    directory = tiny_llama(tmp_path, model_type=family)
    ids = list(range(3, 120))
    compiled, plain = load(directory, dtype="float32"), load(directory, dtype="float32", cpu_kernels="torch")
    assert (compiled.info.kernels, plain.info.kernels) == ("C++", "torch")

    single = logits(compiled, ids, fused=False)  # with torch's sines and cosines
    torch.testing.assert_close(logits(compiled, ids), single, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(compiled, ids), logits(plain, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("weights_dtype", ["auto", "int4", "bf16"])
def test_a_prompt_gives_the_same_bits_however_it_is_cut(tmp_path: Path, weights_dtype: str) -> None:
    model, ids = load(tiny_llama(tmp_path), weights_dtype=weights_dtype), list(range(3, 330))

    assert torch.equal(logits(model, ids, chunk=512), logits(model, ids, chunk=37))


@pytest.mark.usefixtures("needs_kernels")
def test_other_pools_at_the_same_addresses_are_other_pools(tmp_path: Path) -> None:
    model, ids = load(tiny_llama(tmp_path)), list(range(3, 103))
    memory = [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(model.config.num_layers)]
    logits(model, ids, block_size=16, memory=memory)
    for part in memory:
        part.zero_()

    logits(model, ids, block_size=8, memory=memory)

    block_bytes = 2 * model.config.kv_heads * 8 * model.config.head_dim * model.kv_dtype.itemsize
    for part in memory:
        written = part[: 14 * block_bytes].view(14, block_bytes).any(dim=1)
        assert written.tolist() == [False] + [True] * 13  # not the null block, and those of a hundred tokens


@pytest.mark.usefixtures("needs_kernels")
def test_what_auto_chooses_is_as_good_as_the_checkpoint(smollm2: Path) -> None:
    """Perplexity within 1 % of the checkpoint's own numbers in float32; 4 bits, because its file has no more."""
    ids = quality.first_tokens(smollm2, quality.PASSAGE.read_text(encoding="utf-8"), 2048)
    exact, chosen = load(smollm2, dtype="float32"), load(smollm2)
    assert (exact.info.weights_dtype, chosen.info.weights_dtype) == ("bf16", "int4")
    assert (exact.info.kv_dtype, chosen.info.kv_dtype) == ("float32", "bfloat16")
    ours, reference = quality.read(chosen, ids), quality.read(exact, ids)

    assert ours.perplexity == pytest.approx(reference.perplexity, rel=0.01)
    assert ours.agreement(reference) > 0.95


@pytest.mark.usefixtures("needs_kernels")
def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    with pytest.raises(models.ModelError, match="goes with the dtypes auto and float32, not with bfloat16"):
        load(directory, dtype="bfloat16", weights_dtype="int8")
    with pytest.raises(models.ModelError, match="needs the C\\+\\+ kernels of the CPU: they are switched off"):
        load(directory, cpu_kernels="torch", weights_dtype="int8")


@pytest.mark.usefixtures("needs_kernels")
def test_which_kernels_run_and_why_is_told(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)

    assert load(directory).info.kernels_detail == cpp_detail()
    assert ", compiled by " in cpp_detail()
    assert load(directory, cpu_kernels="torch").info.kernels_detail == "they are switched off (cpu-kernels torch)"
    assert "dtype bfloat16 was asked for" in load(directory, dtype="bfloat16").info.kernels_detail


def test_without_a_compiler_it_is_told_at_the_start_why_torch_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.cpp.start", lambda cache, tell: "there is no C++ compiler; install g++")
    told: list[LoadProgress] = []
    directory = tiny_llama(tmp_path)

    info = models.load(directory, EngineConfig(model=str(directory), device="cpu"), told.append).info

    assert (info.kernels, info.kernels_detail) == ("torch", "there is no C++ compiler; install g++")
    assert [one.detail for one in told if one.stage == "starting"] == [
        "CPU kernels: torch's, which are slower than those in C++: there is no C++ compiler; install g++"
    ]
