"""The dimensions of a decoder that decide what its weights and its KV cache weigh, read from a Hugging Face config.

Reads JSON and file sizes only: no weights are opened, no code of a model folder runs, torch is not needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=2**40)]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}

GATED_DECODERS = ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3")
"""model_type values whose parameters are exactly those that `ModelShape.parameters` counts."""

_STATE_KEYS = ("mamba", "ssm_", "linear_", "layers_block_type", "attn_layer_period", "hybrid_override_pattern")
"""Config keys of models whose layers are not all attention."""


class ShapeError(ValueError):
    """No model, or one whose memory cannot be told from its config; the message is one line for people."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    """Where the figures come from: a repository of the Hugging Face hub, or a file."""
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    intermediate: PositiveInt | None = None
    vocab: PositiveInt | None = None
    max_context: PositiveInt | None = None
    """Tokens."""
    tied: bool = False
    """The output head is the embedding."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dtype: str = "bfloat16"
    """Of the weights."""
    countable: bool = True
    """False: the config does not say what its weights are (experts, quantization, a family not known here)."""
    weight_bytes: int | None = None
    """Size of the weight files beside the config, when they are there."""

    def kv_bytes_per_token(self, kv_bytes: int) -> int:
        """K and V of all layers for one token, `kv_bytes` bytes an element."""
        return 2 * self.layers * self.kv_heads * self.head_dim * kv_bytes

    @property
    def parameters(self) -> int | None:
        """Of a decoder with gated MLP and RMSNorm; None when the config does not tell."""
        if not self.countable or self.intermediate is None or self.vocab is None:
            return None
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        attention += (q + 2 * kv) * self.qkv_bias + self.hidden * self.o_bias + 2 * self.head_dim * self.qk_norm
        mlp = 3 * self.hidden * self.intermediate + (2 * self.intermediate + self.hidden) * self.mlp_bias
        norms = 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * (attention + mlp + norms) + self.hidden

    def weights(self) -> tuple[int, str]:
        """Bytes of the weights, and in a few words how they were found. Raises ShapeError when nothing tells."""
        if self.weight_bytes:
            return self.weight_bytes, "size of its weight files"
        if self.parameters is None:
            raise ShapeError(f"the config of {self.name} does not tell what its weights take: give --weights")
        return self.parameters * DTYPE_BYTES[self.dtype], f"{self.parameters:,} parameters in {self.dtype}"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of config.json; everything else in it is left alone."""

    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    max_position_embeddings: PositiveInt | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    model_type: str = ""
    dtype: str | None = None
    torch_dtype: str | None = None


def read_config(path: Path) -> ModelShape:
    """The shape in `path`: a config.json, or a directory that holds one. Raises ShapeError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise ShapeError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ShapeError(f"{str(file)!r} is not JSON") from None
    if not isinstance(config, dict):
        raise ShapeError(f"{str(file)!r} is not a model config")
    name = file.parent.resolve().name
    return _shape(config, name, str(file), _weight_bytes(file.parent))


def _shape(config: dict[str, Any], name: str, source: str, weight_bytes: int | None) -> ModelShape:
    if isinstance(config.get("text_config"), dict):  # a model with images or sound: the text part has the KV cache
        config = {**config["text_config"], "_outer": True}
    _refuse_other_caches(config, name)
    try:
        known = msgspec.convert(config, _Config)
    except msgspec.ValidationError as error:
        raise ShapeError(f"the config of {name} cannot be used: {error}") from None
    plain = (
        not any("expert" in key for key in config) and "quantization_config" not in config and "_outer" not in config
    )
    dtype = known.dtype or known.torch_dtype or "float32"
    family = known.model_type
    return ModelShape(
        name=name,
        source=source,
        layers=known.num_hidden_layers,
        hidden=known.hidden_size,
        heads=known.num_attention_heads,
        kv_heads=known.num_key_value_heads or known.num_attention_heads,
        head_dim=known.head_dim or known.hidden_size // known.num_attention_heads or 1,
        intermediate=known.intermediate_size,
        vocab=known.vocab_size,
        max_context=known.max_position_embeddings,
        tied=_tied(known),
        qkv_bias=family == "qwen2" or bool(known.attention_bias),
        o_bias=family != "qwen2" and bool(known.attention_bias),
        mlp_bias=bool(known.mlp_bias),
        qk_norm=family == "qwen3",
        dtype=dtype,
        countable=plain and family in GATED_DECODERS and dtype in DTYPE_BYTES,
        weight_bytes=weight_bytes,
    )


def _tied(config: _Config) -> bool:
    """An absent value means the family's default in transformers: tied for SmolLM3 alone of the families counted."""
    return config.model_type == "smollm3" if config.tie_word_embeddings is None else config.tie_word_embeddings


def _refuse_other_caches(config: dict[str, Any], name: str) -> None:
    """A cache that does not hold K and V of every token in every layer has no KV per token to compute with."""
    if config.get("is_encoder_decoder"):
        raise ShapeError(f"{name} is an encoder-decoder: its cache is not one KV cache per token")
    if config.get("kv_lora_rank"):
        raise ShapeError(f"{name} uses latent attention (kv_lora_rank): its cache holds no K and V heads")
    if any(key.startswith(_STATE_KEYS) for key in config):
        raise ShapeError(f"{name} has layers with a state instead of attention: its KV per token is not constant")
    kinds = config.get("layer_types")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    context = config.get("max_position_embeddings")
    if isinstance(kinds, list):
        if any(kind != "full_attention" for kind in kinds):
            raise ShapeError(f"{name} has layers without full attention: its KV per token is not constant")
    elif window is not None and not (isinstance(window, int) and isinstance(context, int) and window >= context):
        raise ShapeError(f"{name} has a sliding window ({window!r} tokens): its KV per token is not constant")


def _weight_bytes(folder: Path) -> int | None:
    """Bytes of the safetensors files beside the config, or None without any."""
    try:
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
    except OSError:
        return None
