"""Qwen2 and 2.5: queries, keys and values have biases, whatever the config says."""

from engine.models.families.family import Family, windowed_from_a_layer_on

QWEN2 = Family(
    "qwen2",
    defaults={"num_key_value_heads": 32, "sliding_window": 4096},
    qkv_bias=True,
    windowed=windowed_from_a_layer_on,
)
