"""What config.json may say, in the words of transformers 4 and 5; and what is refused, by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.models import ModelError
from engine.models.config import (
    AttentionConfig,
    DecoderConfig,
    GatedMlpConfig,
    LayerConfig,
    MoeConfig,
    NormConfig,
    RopeConfig,
    refuse_what_is_not_computed,
)
from engine.models.registry import parse_config, read_config

SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "rope_scaling": None,
    "tie_word_embeddings": True,
}


def test_a_config_of_transformers_4() -> None:
    config = parse_config(SMOLLM2)

    assert (config.heads, config.kv_heads, config.head_dim, config.num_layers) == (9, 3, 64, 30)
    assert config.layers[0].attention.rope == RopeConfig("default", 100_000.0)
    assert config.tied_embeddings
    assert config.kv_bytes_per_token(2) == 23_040  # 2 * 30 * 3 * 64 * 2


def test_a_config_of_transformers_5_puts_rope_in_one_object() -> None:
    raw = {**SMOLLM2, "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}}

    assert parse_config(raw).layers[0].attention.rope == RopeConfig("linear", 5e5, factor=2.0)


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3"])
def test_a_sliding_window_in_force_limits_the_context_to_it(model_type: str) -> None:
    """Within the window, windowed attention is full attention."""
    raw = {**SMOLLM2, "model_type": model_type, "sliding_window": 1024, "use_sliding_window": True}

    assert parse_config({**raw, "max_window_layers": 29}).max_context == 1024


def test_a_sliding_window_that_is_switched_off_limits_nothing() -> None:
    raw = {**SMOLLM2, "model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}

    assert parse_config(raw).max_context == 8192


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("says", "layers_with_a_window"),
    [
        ({"max_window_layers": 30}, []),
        ({"max_window_layers": 28}, [28, 29]),
        ({}, [28, 29]),  # transformers' default
        ({"layer_types": ["full_attention"] * 30, "max_window_layers": 0}, []),
        ({"layer_types": ["sliding_attention"] + ["full_attention"] * 29}, [0]),
    ],
)
def test_which_layers_have_the_window_is_what_the_config_says(
    model_type: str, says: dict[str, Any], layers_with_a_window: list[int]
) -> None:
    raw = {**SMOLLM2, "model_type": model_type, "sliding_window": 64, "use_sliding_window": True, **says}

    config = parse_config(raw)

    windows = [number for number, layer in enumerate(config.layers) if layer.attention.window == 64]
    assert windows == layers_with_a_window
    assert config.max_context == (64 if windows else 8192)


def test_the_layers_of_a_family_that_does_not_rotate_in_all_of_them() -> None:
    """SmolLM3: every fourth layer rotates nothing, and has the window where there is one."""
    raw = {**SMOLLM2, "model_type": "smollm3", "num_hidden_layers": 5, "sliding_window": 64, "use_sliding_window": True}

    attention = [layer.attention for layer in parse_config(raw).layers]

    assert [one.rope is not None for one in attention] == [True, True, True, False, True]
    assert [one.window for one in attention] == [None, None, None, 64, None]


ROPE = RopeConfig("default", 10_000.0)
PLAIN = LayerConfig(AttentionConfig(8, 2, 16, 0.25, ROPE), GatedMlpConfig(64), NormConfig(1e-6), NormConfig(1e-6))


def decoder(*layers: LayerConfig, norm: NormConfig = PLAIN.before_mlp) -> DecoderConfig:  # type: ignore[assignment]
    return DecoderConfig("new", "NewForCausalLM", 512, 128, layers, norm, 4096, tied_embeddings=False)


def test_a_layer_that_asks_for_what_is_computed_passes() -> None:
    refuse_what_is_not_computed(
        decoder(PLAIN, replace(PLAIN, attention=replace(PLAIN.attention, rope=None, scale=1.0)))
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (replace(PLAIN, attention=replace(PLAIN.attention, heads=4)), "different numbers of heads"),
        (replace(PLAIN, attention=replace(PLAIN.attention, window=1024)), "a window of 1024 tokens"),
        (replace(PLAIN, attention=replace(PLAIN.attention, soft_cap=50.0)), "a soft cap"),
        (replace(PLAIN, attention=replace(PLAIN.attention, sinks=True)), "attention sinks"),
        (replace(PLAIN, mlp=MoeConfig(8, 2, GatedMlpConfig(64))), "a mixture of experts"),
        (replace(PLAIN, mlp=GatedMlpConfig(64, "gelu")), "'gelu'"),
        (replace(PLAIN, after_mlp=NormConfig(1e-6)), "norms after attention or MLP"),
        (replace(PLAIN, before_attention=None), "without norms"),
        (replace(PLAIN, before_mlp=NormConfig(1e-6, plus_one=True)), "add one to their weight"),
    ],
)
def test_what_a_layer_asks_for_and_nothing_computes_is_refused_by_name(change: LayerConfig, named: str) -> None:
    with pytest.raises(ModelError, match=rf"Layer 1 .*new.* not supported: .*{named}"):
        refuse_what_is_not_computed(decoder(PLAIN, change))


def test_mistral_has_a_window_of_4096_unless_its_config_says_none() -> None:
    """MistralConfig's default; null in the file is a statement, an absent key is not."""
    assert parse_config({**SMOLLM2, "model_type": "mistral"}).max_context == 4096
    assert parse_config({**SMOLLM2, "model_type": "mistral", "sliding_window": None}).max_context == 8192


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"model_type": None}, "None"),
        ({"model_type": ["llama"]}, "llama"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}, "rope_type": 3}}, "rope_type"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"num_attention_heads": 10}, "num_attention_heads 10"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named.replace(".", r"\.")):
        parse_config({**SMOLLM2, **change})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_config_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)

    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)
