"""A decoder-only transformer described by data: what every layer is made of, and how large.

A family of models (engine/models/families) turns config.json into this; `engine/models/decoder.py` computes it. Imports
no torch, so that whoever only counts bytes can use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.errors import ModelError

ROPE_TYPES = ("default", "linear", "llama3")


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
class NormConfig:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight, or * (1 + weight) where `plus_one`."""

    eps: float
    plus_one: bool = False


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Causal attention of `heads` query heads over `kv_heads` key/value heads of `head_dim` numbers."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """What the products of queries and keys are multiplied by."""
    rope: RopeConfig | None
    """None: queries and keys are not rotated."""
    qk_norm: NormConfig | None = None
    """Over each head of queries and of keys, before the rotation."""
    qkv_bias: bool = False
    output_bias: bool = False
    window: int | None = None
    """A token sees so many newest tokens, itself included; None: all."""
    soft_cap: float | None = None
    """Scores s become cap * tanh(s / cap)."""
    sinks: bool = False
    """A learned logit a head takes part in the softmax, and gives nothing."""


@dataclass(frozen=True, slots=True)
class GatedMlpConfig:
    """down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A router sends each token to `chosen` of `experts` gated MLPs, and `shared` more see all tokens."""

    experts: int
    chosen: int
    expert: GatedMlpConfig
    shared: int = 0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """x += attention(norm(x)); x += mlp(norm(x)), with the norms that are not None where they stand."""

    attention: AttentionConfig
    mlp: GatedMlpConfig | MoeConfig
    before_attention: NormConfig | None
    before_mlp: NormConfig | None
    after_attention: NormConfig | None = None
    """Of what is added."""
    after_mlp: NormConfig | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """embedding, layers, norm, head. Attention has the same numbers of heads and the same head size in all layers."""

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    norm: NormConfig
    max_context: int
    """Positions the model was made for; where a layer's window is narrower, the window: within it, windowed attention
    and full attention are the same thing."""
    tied_embeddings: bool

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def heads(self) -> int:
        return self.layers[0].attention.heads

    @property
    def kv_heads(self) -> int:
        return self.layers[0].attention.kv_heads

    @property
    def head_dim(self) -> int:
        return self.layers[0].attention.head_dim

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes that keys and values of one token take in all layers."""
        return 2 * itemsize * sum(layer.attention.kv_heads * layer.attention.head_dim for layer in self.layers)


def refuse_what_is_not_computed(config: DecoderConfig) -> None:
    """Raises ModelError that names what a layer needs and the decoder or its kernels lack: nothing is left out."""
    first = config.layers[0].attention
    for number, layer in enumerate(config.layers):
        attention, mlp = layer.attention, layer.mlp
        shape = (attention.heads, attention.kv_heads, attention.head_dim)
        lacks = {
            "layers of different numbers of heads or head sizes": shape
            != (first.heads, first.kv_heads, first.head_dim),
            f"a window of {attention.window} tokens": (attention.window or config.max_context) < config.max_context,
            "a soft cap of attention scores": attention.soft_cap is not None,
            "attention sinks": attention.sinks,
            "a mixture of experts": isinstance(mlp, MoeConfig),
            f"the activation {getattr(mlp, 'activation', 'silu')!r} (only 'silu' is)": (
                isinstance(mlp, GatedMlpConfig) and mlp.activation != "silu"
            ),
            "norms after attention or MLP": layer.after_attention is not None or layer.after_mlp is not None,
            "a layer without norms before attention and MLP": None in (layer.before_attention, layer.before_mlp),
            "norms that add one to their weight": any(
                norm is not None and norm.plus_one
                for norm in (config.norm, attention.qk_norm, layer.before_attention, layer.before_mlp)
            ),
        }
        for what, needed in lacks.items():
            if needed:
                raise ModelError(f"Layer {number} of the model ({config.family}) needs what is not supported: {what}.")


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


class Values:
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

    def listed(self, key: str, layers: int) -> list[Any] | None:
        """A list with an entry a layer; None where the key is absent."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            raise ModelError(f"config.json: {key} must list all {layers} layers.")
        return value[:layers]
