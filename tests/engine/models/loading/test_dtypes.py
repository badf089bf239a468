"""Which number types are computed in, on which machines, for which checkpoints; and which GPUs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models import ModelError, load
from engine.models.loading.dtypes import check_gpu, check_gpu_room, check_gpu_shape, cpu_dtypes, gpu_dtypes
from engine.models.loading.weights import Checkpoint
from engine.process.config import EngineConfig
from tests.models import tiny_llama

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("asked", "checkpoint", "computed"),
    [
        ("auto", BF16, BF16),
        ("auto", F16, F16),  # bfloat16 would drop three bits of every number
        ("auto", F32, BF16),
        ("auto", None, BF16),  # random weights
        ("bfloat16", F16, BF16),
        ("float16", BF16, F16),
        ("float32", F16, F32),
    ],
)
def test_a_gpu_computes_in_what_was_asked_for_or_in_the_checkpoints_16_bits(
    asked: str, checkpoint: torch.dtype | None, computed: torch.dtype
) -> None:
    assert gpu_dtypes(asked, checkpoint) == (computed, computed)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "compiled", "fast", "expected"),
    [
        ("auto", F16, True, True, (F32, BF16)),
        ("auto", BF16, False, True, (BF16, BF16)),
        ("auto", F16, False, True, (F32, F32)),
        ("auto", BF16, False, False, (F32, F32)),
        ("float16", BF16, False, True, (F16, F16)),
        ("float32", BF16, True, False, (F32, F32)),
    ],
)
def test_a_cpu(
    asked: str, checkpoint: torch.dtype, compiled: bool, fast: bool, expected: tuple[torch.dtype, torch.dtype]
) -> None:
    assert cpu_dtypes(asked, checkpoint, compiled=compiled, fast_bfloat16=fast) == expected


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 1)])
def test_cards_since_ampere_are_taken(capability: tuple[int, int]) -> None:
    check_gpu("some GPU", capability)


@pytest.mark.parametrize(("name", "capability"), [("Tesla T4", (7, 5)), ("Tesla V100", (7, 0)), ("GTX 1080", (6, 1))])
def test_older_cards_are_refused_by_name_with_both_numbers(name: str, capability: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match=rf"{name} has compute capability {capability[0]}\.{capability[1]}.*8\.0"):
        check_gpu(name, capability)


def test_attention_that_no_tile_of_the_gpu_kernels_fits_is_refused_with_the_numbers() -> None:
    for heads, kv_heads, head_dim in ((128, 1, 64), (71, 1, 64), (96, 4, 128), (16, 8, 256)):
        check_gpu_shape(heads, kv_heads, head_dim)
    with pytest.raises(ModelError, match="129 query heads share a key/value head"):
        check_gpu_shape(129, 1, 64)
    with pytest.raises(ModelError, match="head_dim is 512"):
        check_gpu_shape(8, 8, 512)


def test_a_tile_of_float32_that_a_card_has_no_room_for_is_refused_with_the_numbers() -> None:
    """99 KiB on an RTX 3090, 163 on an A100, 227 on an H200."""
    check_gpu_room("NVIDIA H200", 232_448, 256, F32)
    check_gpu_room("NVIDIA GeForce RTX 3090", 101_376, 128, F32)
    check_gpu_room("NVIDIA GeForce RTX 3090", 101_376, 256, BF16)
    with pytest.raises(ModelError, match=r"head_dim 256 needs 168 KiB.*RTX 3090 has 99 KiB.*bfloat16"):
        check_gpu_room("NVIDIA GeForce RTX 3090", 101_376, 256, F32)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_the_checkpoints_type_is_that_of_most_of_its_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    """Norms are often stored in float32 beside 16-bit matrices."""
    directory = tiny_llama(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    save_file({n: t.to(dtype) if t.dim() > 1 else t for n, t in tensors.items()}, directory / "model.safetensors")

    assert Checkpoint(directory).dtype() == dtype


def test_a_float16_checkpoint_stays_what_it_is_on_a_cpu_with_bfloat16_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.models.loading.load.multiplies_bfloat16", lambda: True)
    directory = tiny_llama(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    config = EngineConfig(model=str(directory), cpu_kernels="torch")
    assert load(directory, config, lambda _: None).info.dtype == "bfloat16"

    save_file({name: tensor.half() for name, tensor in tensors.items()}, directory / "model.safetensors")

    assert load(directory, config, lambda _: None).info.dtype == "float32"
