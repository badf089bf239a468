"""What a family's table says: how its config.json is read, and how its checkpoints name their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.models.config import (
    ROPE_TYPES,
    AttentionConfig,
    GatedMlpConfig,
    LayerConfig,
    NormConfig,
    RopeConfig,
    Values,
)
from engine.models.errors import ModelError

Switch = bool | str
"""Yes or no for the whole family; or the key of config.json that says so, absent meaning no."""


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """Of a checkpoint's tensors, without the `.weight` or `.bias` at their ends. `{}` is the layer's number.

    A tuple names matrices that stand side by side in a checkpoint and are one product here.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    input_norm: str = "model.layers.{}.input_layernorm"
    qkv: tuple[str, ...] = tuple(f"model.layers.{{}}.self_attn.{part}_proj" for part in "qkv")
    q_norm: str = "model.layers.{}.self_attn.q_norm"
    k_norm: str = "model.layers.{}.self_attn.k_norm"
    out: str = "model.layers.{}.self_attn.o_proj"
    mlp_norm: str = "model.layers.{}.post_attention_layernorm"
    gate_up: tuple[str, ...] = ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj")
    down: str = "model.layers.{}.mlp.down_proj"
    ignored_suffixes: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Of tensors that old checkpoints carry, and that are computed."""


def every_layer(values: Values, layers: int) -> list[bool]:
    return [True] * layers


def no_window(values: Values, rotates: list[bool]) -> list[bool]:
    return [False] * len(rotates)


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose layers are norm, attention, norm, gated MLP, each added to what came in; told apart by this."""

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers' config class gives to keys that are absent. An explicit null takes none of them."""
    qkv_bias: Switch = False
    output_bias: Switch = False
    mlp_bias: Switch = False
    qk_norm: bool = False
    rotates: Callable[[Values, int], list[bool]] = every_layer
    """Whether each layer rotates queries and keys."""
    windowed: Callable[[Values, list[bool]], list[bool]] = no_window
    """Whether each layer sees `sliding_window` tokens only; given which of them rotate."""
    names: CheckpointNames = field(default_factory=CheckpointNames)

    def layers(self, values: Values) -> tuple[LayerConfig, ...]:
        """Raises ModelError that names the key which is missing or wrong."""
        count, heads = values.count("num_hidden_layers"), values.count("num_attention_heads")
        hidden, kv_heads = values.count("hidden_size"), values.count("num_key_value_heads", heads)
        head_dim = values.count("head_dim", hidden // heads)
        if heads % kv_heads or head_dim % 2:
            raise ModelError(
                f"num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}, "
                f"and head_dim {head_dim} even."
            )
        norm, rope, rotates = read_norm(values), _rope(values), self.rotates(values, count)
        windowed = self.windowed(values, rotates)
        window = values.count("sliding_window") if any(windowed) else None
        mlp = GatedMlpConfig(
            values.count("intermediate_size"), values.text("hidden_act", "silu"), _switch(values, self.mlp_bias)
        )

        def layer(number: int) -> LayerConfig:
            attention = AttentionConfig(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                rope=rope if rotates[number] else None,
                qk_norm=norm if self.qk_norm else None,
                qkv_bias=_switch(values, self.qkv_bias),
                output_bias=_switch(values, self.output_bias),
                window=window if windowed[number] else None,
            )
            return LayerConfig(attention, mlp, before_attention=norm, before_mlp=norm)

        return tuple(layer(number) for number in range(count))


def read_norm(values: Values) -> NormConfig:
    return NormConfig(values.number("rms_norm_eps", 1e-6))


def windowed_from_a_layer_on(values: Values, rotates: list[bool]) -> list[bool]:
    """Qwen's: as `layer_types` lists, else layers from `max_window_layers` on; none without `use_sliding_window`."""
    if not _has_window(values):
        return [False] * len(rotates)
    listed = _listed_windows(values, len(rotates))
    first = values.raw.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ModelError(f"config.json: max_window_layers must be a whole number, not {first!r}.")
    return listed or [number >= first for number in range(len(rotates))]


def windowed_where_nothing_rotates(values: Values, rotates: list[bool]) -> list[bool]:
    """SmolLM3's: as `layer_types` lists, else the layers without rotation; none without `use_sliding_window`."""
    if not _has_window(values):
        return [False] * len(rotates)
    return _listed_windows(values, len(rotates)) or [not turns for turns in rotates]


def windowed_everywhere(values: Values, rotates: list[bool]) -> list[bool]:
    """Mistral's: all layers, where `sliding_window` is not null."""
    return ["sliding_window" in values.raw] * len(rotates)


def _has_window(values: Values) -> bool:
    return values.switch("use_sliding_window", False) and "sliding_window" in values.raw


def _listed_windows(values: Values, layers: int) -> list[bool] | None:
    listed = values.listed("layer_types", layers)
    if listed is None:
        return None
    for kind in listed:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"Layers of the type {kind!r} (layer_types in config.json) are not supported.")
    return [kind == "sliding_attention" for kind in listed]


def _switch(values: Values, switch: Switch) -> bool:
    return values.switch(switch, False) if isinstance(switch, str) else switch


def _rope(values: Values) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before)."""
    raw = values.raw.get("rope_parameters") or values.raw.get("rope_scaling") or {}
    if not isinstance(raw, Mapping):
        raise ModelError(f"config.json: rope_parameters must be an object, not {raw!r}.")
    merged = Values({"rope_theta": values.raw.get("rope_theta", 10_000.0), **raw})
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
