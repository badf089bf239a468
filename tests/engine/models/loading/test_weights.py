"""Weights that do not fit the config, are cut short, or are of a kind that could execute code, are refused by name."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.models import ModelError, load
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from tests.engine.models.test_decoder import paged_logits
from tests.models import tiny_llama


def load_tiny(directory: Path, **settings: Any) -> LoadedModel:
    return load(directory, EngineConfig(model=str(directory), **settings), lambda _: None)


Tensors = dict[str, torch.Tensor]


def rewrite(directory: Path, change: Callable[[Tensors], None]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(directory / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    rewrite(directory, lambda tensors: tensors.__delitem__("model.layers.1.mlp.up_proj.weight"))

    with pytest.raises(ModelError, match=r"lack the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load_tiny(directory)


def test_a_tensor_of_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    rewrite(directory, lambda tensors: tensors.update({"model.norm.weight": torch.ones(47)}))

    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[47\].*\[48\]"):
        load_tiny(directory)


def test_a_tensor_the_config_does_not_account_for_is_named(tmp_path: Path) -> None:
    """A bias that the decoder would leave out would make every answer silently wrong."""
    directory = tiny_llama(tmp_path)
    rewrite(directory, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(96)}))

    with pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_tiny(directory)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    rewrite(directory, lambda tensors: tensors.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}))

    with pytest.raises(ModelError, match=r"model\.norm\.weight is torch\.int8"):
        load_tiny(directory)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    os.truncate(directory / "model.safetensors", (directory / "model.safetensors").stat().st_size - 1000)

    with pytest.raises(ModelError, match="no complete safetensors file"):
        load_tiny(directory)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_never_opened(name: str, tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    (directory / "model.safetensors").rename(directory / name)

    with pytest.raises(ModelError, match=f"(?s){name}.*can execute code"):
        load_tiny(directory)


def test_an_index_may_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    tiny_llama(tmp_path, name="other")
    index = {"weight_map": {"model.norm.weight": "../other/model.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ModelError, match="no safetensors file beside it"):
        load_tiny(directory)


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "model.embed_tokens.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.1.mlp.down_proj.weight",
        "lm_head.weight",
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("cpu_kernels", ["auto", "torch"])
def test_a_number_that_is_not_finite_is_refused_by_its_tensors_name(
    name: str, value: float, cpu_kernels: str, tmp_path: Path
) -> None:
    directory = tiny_llama(tmp_path, attention_bias=True)
    rewrite(directory, lambda tensors: tensors[name].view(-1).__setitem__(-3, value))

    with pytest.raises(ModelError, match=f"{re.escape(name)} holds NaN or infinity"):
        load_tiny(directory, cpu_kernels=cpu_kernels)


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]
)
def test_a_number_too_large_for_the_dtype_asked_for_is_refused(name: str, tmp_path: Path) -> None:
    """float16 ends at 65,504; the numbers of a bfloat16 checkpoint may be larger."""
    directory = tiny_llama(tmp_path)
    rewrite(directory, lambda tensors: tensors[name].view(-1).__setitem__(5, 1e5))
    load_tiny(directory, dtype="bfloat16")

    with pytest.raises(ModelError, match=f"{re.escape(name)} has numbers too large for float16"):
        load_tiny(directory, dtype="float16")


def test_a_head_of_its_own_beside_tied_embeddings_is_used_and_told_as_transformers_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tied, own = tiny_llama(tmp_path, tie_word_embeddings=True), tmp_path / "own"
    shutil.copytree(tied, own)
    rewrite(own, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].flip(0)}))
    ids = torch.arange(20)
    with torch.inference_mode():
        reference = AutoModelForCausalLM.from_pretrained(own, dtype=torch.float32)(ids[None]).logits[0]
        got = paged_logits(load_tiny(own, dtype="float32"), ids, 16, 20)

    assert "ties lm_head.weight to the embedding (tie_word_embeddings)" in caplog.text
    torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("stored", ["twice", "as the head"])
def test_one_tensor_stored_twice_or_under_the_heads_name_is_tied_without_a_word(
    stored: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tiny_llama(tmp_path, tie_word_embeddings=True)
    ids = torch.arange(20)
    reference = paged_logits(load_tiny(directory, dtype="float32"), ids, 16, 20)
    caplog.clear()

    def store(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        if stored == "as the head":
            del tensors["model.embed_tokens.weight"]

    rewrite(directory, store)

    assert torch.equal(paged_logits(load_tiny(directory, dtype="float32"), ids, 16, 20), reference)
    assert "lm_head" not in caplog.text


def test_more_context_than_the_model_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)

    with pytest.raises(ModelError, match=r"513.*512"):
        load(directory, EngineConfig(model=str(directory), max_context=513), lambda _: None)
