"""What config.json says about a decoder of the Llama family, checked: what is not supported is refused by name.

Imports no torch, so that whoever only counts bytes can use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.errors import ModelError

ROPE_TYPES = ("default", "linear", "llama3")

_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "smollm3": {"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2_000_000.0},
}
"""Families by `model_type`, each with the values transformers' config class gives to keys that are absent."""

_HAS_WINDOW_SWITCH = ("qwen2", "qwen3", "smollm3")
"""Families whose `sliding_window` counts only when `use_sliding_window` is true."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: frequencies theta ** (-2 i / head_dim), scaled as `type` says."""

    type: str
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a decoder-only transformer."""

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_context: int
    rope: RopeConfig
    rope_layers: tuple[bool, ...]
    """Whether each layer rotates queries and keys."""
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over each head of queries and keys, before the rotation."""

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes that keys and values of one token take in all layers."""
        return 2 * self.num_layers * self.kv_heads * self.head_dim * itemsize


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model directory. Raises ModelError when it is none."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object.")
    return value


def read_config(directory: Path) -> DecoderConfig:
    """config.json of a model directory. Raises ModelError."""
    return parse_config(read_json(directory / "config.json"))


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """A Hugging Face config, of transformers 4 or 5. Raises ModelError that names what is wrong or not supported."""
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise ModelError(f"Models of type {family!r} are not supported; supported types: {', '.join(_FAMILIES)}.")
    if "auto_map" in raw:
        raise ModelError("The model brings its own code (auto_map in config.json), which is never executed.")
    if raw.get("quantization_config"):
        method = raw["quantization_config"]
        method = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise ModelError(f"Quantized checkpoints are not supported (quantization_config: {method!r}).")
    merged = {**_FAMILIES[family], **raw}  # an explicit null is not an absent key: it takes no family default
    values = _Values({key: value for key, value in merged.items() if value is not None})
    if values.text("hidden_act", "silu") != "silu":
        raise ModelError(f"The activation {values.text('hidden_act', 'silu')!r} is not supported; only 'silu' is.")

    layers, heads, hidden = (values.count(key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    kv_heads = values.count("num_key_value_heads", heads)
    head_dim = values.count("head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}, "
            f"and head_dim {head_dim} even."
        )
    attention_bias = family != "mistral" and values.switch("attention_bias", False)
    return DecoderConfig(
        family=family,
        architecture=_architecture(raw, family),
        vocab_size=values.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=values.count("intermediate_size"),
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=values.number("rms_norm_eps", 1e-6),
        max_context=_max_context(values, family),
        rope=_rope(values),
        rope_layers=_rope_layers(values, family, layers),
        tied_embeddings=values.switch("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=family != "qwen2" and attention_bias,
        mlp_bias=family in ("llama", "smollm3") and values.switch("mlp_bias", False),
        qk_norm=family == "qwen3",
    )


class _Values:
    """Typed access to a raw config; ModelError names the key that is missing or of the wrong kind."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise ModelError(f"config.json: {key} must be a positive number, not {value!r}.")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value):
            raise ModelError(f"config.json: {key} must be a whole number, not {value!r}.")
        return int(value)

    def switch(self, key: str, default: bool) -> bool:
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"config.json: {key} must be true or false, not {value!r}.")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.raw.get(key, default)
        if not isinstance(value, str):
            raise ModelError(f"config.json: {key} must be a string, not {value!r}.")
        return value


def _architecture(raw: Mapping[str, Any], family: str) -> str:
    """The class name, and a refusal of classes that are no language model (classifiers, reward models)."""
    names = raw.get("architectures") or [family]
    name = str(names[0]) if isinstance(names, list) else str(names)
    if name != family and not name.endswith("ForCausalLM"):
        raise ModelError(f"{name} is not a causal language model.")
    return name


def _max_context(values: _Values, family: str) -> int:
    """Positions the model was made for. A sliding window narrower than that cuts it to the window, within which
    windowed attention and full attention are the same thing."""
    limit = values.count("max_position_embeddings")
    if family in _HAS_WINDOW_SWITCH and not values.switch("use_sliding_window", False):
        return limit
    if "sliding_window" not in values.raw:
        return limit
    return min(limit, values.count("sliding_window"))


def _rope(values: _Values) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before)."""
    raw = values.raw.get("rope_parameters") or values.raw.get("rope_scaling") or {}
    if not isinstance(raw, Mapping):
        raise ModelError(f"config.json: rope_parameters must be an object, not {raw!r}.")
    merged = _Values({"rope_theta": values.raw.get("rope_theta", 10_000.0), **raw})
    kind = merged.text("rope_type", merged.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelError(f"The rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}.")
    partial = merged.number("partial_rotary_factor", values.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelError(f"Rotary embedding of a part of each head is not supported (partial_rotary_factor {partial}).")
    theta = merged.number("rope_theta")
    if kind == "default":
        return RopeConfig(kind, theta)
    if kind == "linear":
        return RopeConfig(kind, theta, factor=merged.number("factor"))
    return RopeConfig(
        kind,
        theta,
        factor=merged.number("factor"),
        low_freq_factor=merged.number("low_freq_factor"),
        high_freq_factor=merged.number("high_freq_factor"),
        original_context=merged.count("original_max_position_embeddings"),
    )


def _rope_layers(values: _Values, family: str, layers: int) -> tuple[bool, ...]:
    if family != "smollm3":
        return (True,) * layers
    listed = values.raw.get("no_rope_layers")
    if listed is None:
        interval = values.count("no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if not isinstance(listed, list) or len(listed) < layers:
        raise ModelError(f"config.json: no_rope_layers must list all {layers} layers.")
    return tuple(bool(flag) for flag in listed[:layers])
