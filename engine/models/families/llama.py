"""Llama and what is built like it, SmolLM2 among them."""

from engine.models.families.family import Family

LLAMA = Family("llama", qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
