"""The native decoder gives transformers' own logits, per family, in float32, whatever the paging and chunking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.models import load
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from kernels.backend import SpanTable
from tests.models import tiny_llama

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama, one key/value head": {"num_key_value_heads": 1, "head_dim": 8},
    "llama, 24 query heads a key/value head": {"num_attention_heads": 24, "num_key_value_heads": 1, "head_dim": 8},
    "llama, 71 query heads a key/value head": {
        "hidden_size": 71,
        "num_attention_heads": 71,
        "num_key_value_heads": 1,
        "head_dim": 4,
    },
    "llama linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "qwen3 with biases": {"model_type": "qwen3", "attention_bias": True},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5},
}


def load_tiny(directory: Path, **config: Any) -> LoadedModel:
    return load(directory, EngineConfig(model=str(directory), **{"dtype": "float32", **config}), lambda _: None)


def paged_logits(model: LoadedModel, ids: torch.Tensor, block_size: int, chunk: int) -> torch.Tensor:
    """Logits of every position, computed chunk by chunk over a paged pool with scattered blocks."""
    config = model.config
    blocks = -(-len(ids) // block_size)
    table = list(range(blocks, 0, -1))
    kv = [
        model.backend.new_kv(blocks, config.kv_heads, block_size, config.head_dim, model.kv_dtype)
        for _ in range(config.num_layers)
    ]
    parts = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        plan = model.backend.plan_attention(
            [SpanTable(start, len(part), table)],
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            dtype=model.dtype,
        )
        parts.append(model.decoder.logits(model.decoder.forward(model.decoder.embed(part), kv, plan)))
    return torch.cat(parts)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path, **FAMILIES[family])
    ids = torch.randint(0, 512, (150,), generator=torch.Generator().manual_seed(1))
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids[None]).logits[0]
    model = load_tiny(directory)

    for block_size, chunk in ((16, 150), (8, 37), (128, 1)):
        got = paged_logits(model, ids, block_size, chunk)
        torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-4 * float(reference.abs().max()))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@torch.inference_mode()
def test_half_precision_errs_no_more_than_transformers_does(dtype: str, tmp_path: Path) -> None:
    """Twice transformers' own error against float32: FlashAttention's criterion for its kernels."""
    directory = tiny_llama(tmp_path)
    ids = torch.randint(0, 512, (100,), generator=torch.Generator().manual_seed(1))
    exact = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)(ids[None]).logits[0]
    half = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))(ids[None]).logits[0]

    got = paged_logits(load_tiny(directory, dtype=dtype), ids, 16, 33)

    def error(logits: torch.Tensor) -> float:
        return float((logits.float() - exact).pow(2).mean().sqrt())

    assert error(got) <= 2 * error(half)


@torch.inference_mode()
def test_a_sharded_checkpoint_loads_like_a_whole_one(tmp_path: Path) -> None:
    whole = tiny_llama(tmp_path, name="whole")
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(whole).save_pretrained(sharded, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    ids = torch.arange(30)

    assert torch.equal(paged_logits(load_tiny(whole), ids, 16, 30), paged_logits(load_tiny(sharded), ids, 16, 30))


def test_what_is_told_about_a_model(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path, tie_word_embeddings=True)
    reference = AutoModelForCausalLM.from_pretrained(directory)
    steps: list[tuple[int, int]] = []

    model = load(
        directory,
        EngineConfig(model=str(directory), dtype="float32", max_context=100),
        lambda p: steps.append((p.done, p.total)),
    )

    assert model.info.parameters == reference.num_parameters()
    assert model.info.max_context == 100
    assert (model.info.vocab_size, model.info.dtype, model.info.device) == (512, "float32", "cpu")
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, head_dim, float32
    assert steps == [(0, 2), (1, 2), (2, 2)]
