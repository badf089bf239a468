"""config.json to a described decoder, by its `model_type`: what is not supported is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.models.config import DecoderConfig, Values, read_json, refuse_what_is_not_computed
from engine.models.errors import ModelError
from engine.models.families.family import Family, read_norm
from engine.models.families.llama import LLAMA
from engine.models.families.mistral import MISTRAL
from engine.models.families.qwen2 import QWEN2
from engine.models.families.qwen3 import QWEN3
from engine.models.families.smollm3 import SMOLLM3

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3)}


def read_config(directory: Path) -> DecoderConfig:
    """config.json of a model directory. Raises ModelError."""
    return parse_config(read_json(directory / "config.json"))


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """A Hugging Face config, of transformers 4 or 5. Raises ModelError that names what is wrong or not supported."""
    name = raw.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelError(f"Models of type {name!r} are not supported; supported types: {', '.join(FAMILIES)}.")
    if "auto_map" in raw:
        raise ModelError("The model brings its own code (auto_map in config.json), which is never executed.")
    if raw.get("quantization_config"):
        method = raw["quantization_config"]
        method = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise ModelError(f"Quantized checkpoints are not supported (quantization_config: {method!r}).")
    family = FAMILIES[name]
    values = Values({key: value for key, value in {**family.defaults, **raw}.items() if value is not None})
    layers = family.layers(values)
    windows = [layer.attention.window for layer in layers if layer.attention.window is not None]
    config = DecoderConfig(
        family=name,
        architecture=_architecture(raw, name),
        vocab_size=values.count("vocab_size"),
        hidden_size=values.count("hidden_size"),
        layers=layers,
        norm=read_norm(values),
        max_context=min([values.count("max_position_embeddings"), *windows]),
        tied_embeddings=values.switch("tie_word_embeddings", False),
    )
    refuse_what_is_not_computed(config)
    return config


def _architecture(raw: Mapping[str, Any], family: str) -> str:
    """The class name, and a refusal of classes that are no language model (classifiers, reward models)."""
    names = raw.get("architectures") or [family]
    name = str(names[0]) if isinstance(names, list) else str(names)
    if name != family and not name.endswith("ForCausalLM"):
        raise ModelError(f"{name} is not a causal language model.")
    return name
