"""Qwen3: a norm over each head of queries and keys, and a head size of its own."""

from engine.models.families.family import Family, windowed_from_a_layer_on

QWEN3 = Family(
    "qwen3",
    defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm=True,
    windowed=windowed_from_a_layer_on,
)
