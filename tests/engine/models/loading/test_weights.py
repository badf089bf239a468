"""Weights that do not fit the config, are cut short, or are of a kind that could execute code, are refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models import ModelError, load
from engine.process.config import EngineConfig
from tests.models import tiny_llama


def load_tiny(directory: Path) -> None:
    load(directory, EngineConfig(model=str(directory)), lambda _: None)


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


def test_more_context_than_the_model_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)

    with pytest.raises(ModelError, match=r"513.*512"):
        load(directory, EngineConfig(model=str(directory), max_context=513), lambda _: None)
