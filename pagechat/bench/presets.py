"""The dimensions of well-known models, copied from the config.json of the repository each names as its source.

Only models with full attention in every layer: their KV per token is one number.
"""

from __future__ import annotations

from typing import Any

from pagechat.bench.shape import ModelShape


def _preset(
    name: str,
    source: str,
    *,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    head_dim: int,
    intermediate: int,
    vocab: int,
    context: int,
    **others: Any,
) -> ModelShape:
    """`heads`: query heads and KV heads."""
    return ModelShape(
        name=name,
        source=source,
        layers=layers,
        hidden=hidden,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=vocab,
        max_context=context,
        **others,
    )


# fmt: off
_ALL = (
    _preset("llama-2-7b", "meta-llama/Llama-2-7b-hf", layers=32, hidden=4096, heads=(32, 32),
            head_dim=128, intermediate=11008, vocab=32000, context=4096, dtype="float16"),
    _preset("llama-2-13b", "meta-llama/Llama-2-13b-hf", layers=40, hidden=5120, heads=(40, 40),
            head_dim=128, intermediate=13824, vocab=32000, context=4096, dtype="float16"),
    _preset("llama-2-70b", "meta-llama/Llama-2-70b-hf", layers=80, hidden=8192, heads=(64, 8),
            head_dim=128, intermediate=28672, vocab=32000, context=4096, dtype="float16"),
    _preset("llama-3.1-8b", "meta-llama/Llama-3.1-8B", layers=32, hidden=4096, heads=(32, 8),
            head_dim=128, intermediate=14336, vocab=128256, context=131072),
    _preset("llama-3.1-70b", "meta-llama/Llama-3.1-70B", layers=80, hidden=8192, heads=(64, 8),
            head_dim=128, intermediate=28672, vocab=128256, context=131072),
    _preset("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", layers=30, hidden=576, heads=(9, 3),
            head_dim=64, intermediate=1536, vocab=49152, context=8192, tied=True),
    _preset("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", layers=32, hidden=960, heads=(15, 5),
            head_dim=64, intermediate=2560, vocab=49152, context=8192, tied=True),
    _preset("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", layers=24, hidden=2048, heads=(32, 32),
            head_dim=64, intermediate=8192, vocab=49152, context=8192, tied=True),
    _preset("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", layers=24, hidden=896, heads=(14, 2),
            head_dim=64, intermediate=4864, vocab=151936, context=32768, tied=True, qkv_bias=True),
    _preset("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", layers=28, hidden=3584, heads=(28, 4),
            head_dim=128, intermediate=18944, vocab=152064, context=32768, qkv_bias=True),
    _preset("qwen3-0.6b", "Qwen/Qwen3-0.6B", layers=28, hidden=1024, heads=(16, 8),
            head_dim=128, intermediate=3072, vocab=151936, context=40960, tied=True, qk_norm=True),
    _preset("qwen3-8b", "Qwen/Qwen3-8B", layers=36, hidden=4096, heads=(32, 8),
            head_dim=128, intermediate=12288, vocab=151936, context=40960, qk_norm=True),
    _preset("qwen3-32b", "Qwen/Qwen3-32B", layers=64, hidden=5120, heads=(64, 8),
            head_dim=128, intermediate=25600, vocab=151936, context=40960, qk_norm=True),
    _preset("mistral-7b-v0.3", "mistralai/Mistral-7B-Instruct-v0.3", layers=32, hidden=4096, heads=(32, 8),
            head_dim=128, intermediate=14336, vocab=32768, context=32768),
    _preset("phi-3-mini-128k", "microsoft/Phi-3-mini-128k-instruct", layers=32, hidden=3072, heads=(32, 32),
            head_dim=96, intermediate=8192, vocab=32064, context=131072),
)
# fmt: on

PRESETS = {shape.name: shape for shape in _ALL}

_ALIASES = {shape.source.lower(): shape for shape in _ALL} | {"smollm2": PRESETS["smollm2-135m"]}


def find(name: str) -> ModelShape | None:
    """The preset of this name, or of this repository of the Hugging Face hub; upper and lower case alike."""
    return PRESETS.get(name.lower()) or _ALIASES.get(name.lower())
