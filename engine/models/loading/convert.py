"""A GGUF file to a model directory in Hugging Face layout, weights in bfloat16; one tensor in memory at a time."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from engine.models.errors import ModelError
from engine.models.loading.gguf_file import GgufFile, GgufTensor
from engine.models.loading.gguf_tokenizer import build_tokenizer
from engine.models.registry import parse_config

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""general.architecture, which is also the model_type. Mistral's files call themselves llama."""

_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"


def converted_bytes(file: GgufFile) -> int:
    """About what `convert` writes: two bytes a number, and the tokenizer."""
    return 2 * sum(prod(tensor.shape) for tensor in file.tensors.values()) + (16 << 20)


def convert(file: GgufFile, directory: Path, progress: Callable[[int, int], None]) -> None:
    """Writes config.json, model.safetensors, tokenizer.json and their companions into `directory`, and syncs them.

    `progress` gets bytes written and in all. Raises ModelError for a file that this engine could not run.
    """
    parts, number = file.metadata.get("split.count", 1), file.metadata.get("split.no", 0)
    if parts not in (0, 1) and isinstance(number, int):
        raise ModelError(
            f"{file.path} is part {number + 1} of {parts} of a GGUF file that was split. Parts are not supported: "
            "join them (llama-gguf-split --merge) and give the whole file."
        )
    config = _config(file)
    parse_config(config)  # refuses what the decoder does not support before minutes are spent
    tokenizer = build_tokenizer(file.metadata, file.path)
    if tokenizer.get_vocab_size() > config["vocab_size"]:
        raise ModelError(
            f"The GGUF file's tokenizer has {tokenizer.get_vocab_size()} tokens, "
            f"its embedding only {config['vocab_size']}."
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", _tokenizer_config(file.metadata)),
        ("generation_config.json", _generation_config(file.metadata)),
    ):
        (directory / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    names = {_hf_name(tensor.name): tensor for tensor in file.tensors.values() if tensor.name != _ROPE_FACTORS}
    _write_safetensors(file, names, config, directory / "model.safetensors", progress)
    for path in directory.iterdir():
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hf_name(name: str) -> str:
    """Raises ModelError for a tensor that the decoder has no place for."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _TENSORS:
        return f"{_TENSORS[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _LAYER_TENSORS:
        return f"model.layers.{int(parts[1])}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    raise ModelError(f"The GGUF file has a tensor {name!r} that no supported model has.")


def _config(file: GgufFile) -> dict[str, Any]:
    """config.json from the metadata. Raises ModelError for what it cannot express."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ModelError(
            f"GGUF files of architecture {architecture!r} are not supported; supported: {', '.join(_ARCHITECTURES)}."
        )

    def value(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    if value("expert_count", 0):
        raise ModelError("Mixture-of-experts models are not supported (expert_count in the GGUF file).")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("The GGUF file lacks the tensor token_embd.weight.")
    heads, hidden = value("attention.head_count"), value("embedding_length")
    config = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": value("attention.key_length", value("rope.dimension_count")),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": _shortest_float32(value("attention.layer_norm_rms_epsilon", 1e-6)),
        "hidden_act": "silu",
        "rope_parameters": _rope(file, value),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": architecture == "llama" and "blk.0.ffn_up.bias" in file.tensors,
        "torch_dtype": "bfloat16",
        **_special_ids(metadata),
    }
    if value("attention.sliding_window"):
        config |= {"sliding_window": value("attention.sliding_window"), "use_sliding_window": True}
    return {key: entry for key, entry in config.items() if entry is not None}


def _shortest_float32(number: Any) -> Any:
    """9.999999747378752e-06, as a float32 in the file reads, is 1e-05 to whoever wrote it."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def _rope(file: GgufFile, value: Callable[..., Any]) -> dict[str, Any]:
    theta = value("rope.freq_base", 10_000.0)
    head_dim, rotated = value("attention.key_length"), value("rope.dimension_count")
    if head_dim and rotated and head_dim != rotated:
        raise ModelError(f"Rotary embedding of a part of each head is not supported ({rotated} of {head_dim}).")
    if _ROPE_FACTORS in file.tensors:
        return {"rope_type": "llama3", "rope_theta": theta, **_llama3(file.read(file.tensors[_ROPE_FACTORS]), theta)}
    # As llama.cpp reads it: no type means linear, an older key may hold the factor, and a factor of 0 means none.
    scaling = value("rope.scaling.type", "linear")
    factor = value("rope.scaling.factor", value("rope.scale_linear", 0.0)) or 1.0
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": scaling, "rope_theta": theta, "factor": factor}


def _llama3(factors: np.ndarray, theta: float) -> dict[str, Any]:
    """The parameters of Llama 3's scaling that give these factors, by which a GGUF file divides the frequencies.

    The file has lost the parameters. All published ones differ only in `factor`, which is the largest factor;
    anything that does not come out as it stands in the file is refused.
    """
    factor, low, high, original = float(factors.max()), 1.0, 4.0, 8192
    count = len(factors)
    wavelength = 2 * np.pi * theta ** (np.arange(count) / count)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    if not np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise ModelError(f"The GGUF file scales rotary frequencies in an unknown way ({_ROPE_FACTORS}).")
    return {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _special_ids(metadata: dict[str, Any]) -> dict[str, Any]:
    """bos, eos (a list where the file also knows an end of turn) and pad token ids."""
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "padding")}
    ends = list(dict.fromkeys(token for token in (ids["eos"], ids["eot"]) if token is not None))
    return {
        "bos_token_id": ids["bos"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding"],
    }


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: token for key, token in _special_ids(metadata).items() if token is not None}


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]

    def token(name: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None

    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    return {key: entry for key, entry in config.items() if entry is not None}


def _write_safetensors(
    file: GgufFile,
    tensors: dict[str, GgufTensor],
    config: dict[str, Any],
    path: Path,
    progress: Callable[[int, int], None],
) -> None:
    """One safetensors file, written tensor after tensor: the library's own writer wants all of them in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, tensor in tensors.items():
        end = total + 2 * prod(tensor.shape)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [total, end]}
        total = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    written = 0
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, tensor in tensors.items():
            values = _in_hf_order(file.read(tensor), name, config)
            out.write(_bfloat16(values, tensor.name))
            written += 2 * values.size
            progress(written, total)


def _in_hf_order(values: np.ndarray, name: str, config: dict[str, Any]) -> np.ndarray:
    """Llama's query and key rows pair rotary dimensions (0, 1), (2, 3), ... in GGUF; transformers pairs halves."""
    if config["model_type"] != "llama" or ".self_attn." not in name:
        return values
    if ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".k_proj." in name:
        heads = config["num_key_value_heads"]
    else:
        return values
    if values.shape[0] % (2 * heads):
        raise ModelError(f"The tensor {name} has {values.shape[0]} rows, which {heads} heads cannot share.")
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _bfloat16(values: np.ndarray, name: str) -> bytes:
    """Rounded to nearest even, little-endian. Raises ModelError for values that are not finite."""
    values = np.ascontiguousarray(values, dtype="<f4")
    if not np.isfinite(values).all():
        raise ModelError(f"The tensor {name!r} holds values that are no finite numbers.")
    bits = values.view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
