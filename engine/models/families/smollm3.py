"""SmolLM3: every fourth layer rotates nothing."""

from engine.models.config import Values
from engine.models.families.family import Family, windowed_where_nothing_rotates


def _rotates(values: Values, layers: int) -> list[bool]:
    listed = values.listed("no_rope_layers", layers)  # named for the 0 of a layer that does not
    if listed is not None:
        return [bool(flag) for flag in listed]
    interval = values.count("no_rope_layer_interval", 4)
    return [(layer + 1) % interval != 0 for layer in range(layers)]


SMOLLM3 = Family(
    "smollm3",
    defaults={"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2_000_000.0},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    rotates=_rotates,
    windowed=windowed_where_nothing_rotates,
)
