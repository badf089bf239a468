"""Mistral: every layer has a window, unless the config says that there is none."""

from engine.models.families.family import Family, windowed_everywhere

MISTRAL = Family("mistral", defaults={"num_key_value_heads": 8, "sliding_window": 4096}, windowed=windowed_everywhere)
