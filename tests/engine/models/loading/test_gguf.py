"""A GGUF file becomes the directory it was made from; a malformed or unsupported one is refused with a reason."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.models import ModelError
from engine.models.loading.convert import convert
from engine.models.loading.gguf_file import GgufFile
from engine.models.loading.gguf_tokenizer import build_tokenizer
from tests.gguf_models import write_gguf
from tests.models import CHAT_TEMPLATE, tiny_llama


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("original"))


def converted(path: Path, folder: Path) -> Path:
    target = folder / "converted"
    target.mkdir()
    convert(GgufFile(path), target, lambda done, total: None)
    return target


def refused(path: Path, folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        converted(path, folder)
    return str(caught.value)


def test_weights_come_back_in_bfloat16(original: Path, tmp_path: Path) -> None:
    directory = converted(write_gguf(original, tmp_path / "tiny.gguf"), tmp_path)

    expected = load_file(original / "model.safetensors")
    got = load_file(directory / "model.safetensors")
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name].to(torch.bfloat16)) for name in expected)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_quantized_weights_are_what_gguf_decodes(kind: str, tmp_path: Path) -> None:
    """Blocks of 32 numbers, so the rows are multiples of 32."""
    original = tiny_llama(tmp_path, hidden_size=64, head_dim=16, num_attention_heads=4)
    quantization = gguf.GGMLQuantizationType[kind]
    directory = converted(write_gguf(original, tmp_path / "tiny.gguf", quantization=quantization), tmp_path)

    name = "model.layers.1.mlp.down_proj.weight"
    weight = load_file(original / "model.safetensors")[name].numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight, quantization), quantization)
    assert torch.equal(
        load_file(directory / "model.safetensors")[name], torch.from_numpy(expected).reshape(weight.shape).bfloat16()
    )


def test_config_tokens_and_template_come_back(original: Path, tmp_path: Path) -> None:
    directory = converted(write_gguf(original, tmp_path / "tiny.gguf"), tmp_path)

    before = json.loads((original / "config.json").read_text())
    after = json.loads((directory / "config.json").read_text())
    same = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"]
    same += ["max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "intermediate_size"]
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    tokens = json.loads((directory / "tokenizer_config.json").read_text())
    assert (tokens["bos_token"], tokens["eos_token"], tokens["pad_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert tokens["chat_template"] == CHAT_TEMPLATE
    generation = json.loads((directory / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def test_the_tokenizer_gives_the_same_ids(original: Path, tmp_path: Path) -> None:
    directory = converted(write_gguf(original, tmp_path / "tiny.gguf"), tmp_path)
    before = Tokenizer.from_file(str(original / "tokenizer.json"))
    after = Tokenizer.from_file(str(directory / "tokenizer.json"))

    for text in ("<|im_start|>user\nWhat is a cache?<|im_end|>\n", "  two  spaces 12 3\n\n", "naïve 日本 🎉", ""):
        assert after.encode(text).ids == before.encode(text).ids
        assert after.decode(after.encode(text).ids, skip_special_tokens=False) == text
    assert after.encode("<|im_end|>").ids == [2]


def test_an_end_of_turn_token_ends_generation_too(original: Path, tmp_path: Path) -> None:
    path = write_gguf(original, tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.eot_token_id": 7})

    assert json.loads((converted(path, tmp_path) / "generation_config.json").read_text())["eos_token_id"] == [2, 7]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "ab  12", ["ab", "ĠĠ", "1", "2"]),
        ("gpt-2", "ab  12", ["ab", "Ġ", "Ġ12"]),
        ("llama-bpe", "ab  1234", ["ab", "Ġ", "Ġ", "123", "4"]),
        ("qwen2", "ab 12", ["ab", "Ġ", "1", "2"]),
    ],
)
def test_text_is_split_by_the_rule_the_file_names(pre: str, text: str, pieces: list[str]) -> None:
    """The pieces before merging, by the regular expressions of llama.cpp's llama-vocab.cpp."""
    alphabet = sorted({*"abĠ0123456789"})
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": alphabet,
        "tokenizer.ggml.merges": [],
    }

    tokenizer = build_tokenizer(metadata, Path("unused"))

    assert tokenizer.pre_tokenizer is not None
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_llama3_rope_is_recovered_from_its_factors(original: Path, tmp_path: Path) -> None:
    """Factors as llama.cpp's converter writes them for Llama 3.2 (factor 32)."""
    frequencies = 500_000.0 ** -(np.arange(8) / 8)
    wavelengths = 2 * np.pi / frequencies
    smooth = (8192 / wavelengths - 1) / 3
    factors = np.where(
        wavelengths < 8192 / 4, 1.0, np.where(wavelengths > 8192, 32.0, 1 / ((1 - smooth) / 32 + smooth))
    ).astype(np.float32)
    path = write_gguf(
        original,
        tmp_path / "tiny.gguf",
        metadata={"llama.rope.freq_base": 500_000.0},
        tensors={"rope_freqs.weight": factors},
    )

    rope = json.loads((converted(path, tmp_path) / "config.json").read_text())["rope_parameters"]

    assert rope == {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),  # before August 2023
        ({"llama.rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, {"rope_type": "default"}),
        ({"llama.rope.scale_linear": 0.0}, {"rope_type": "default"}),
        ({"llama.rope.scaling.type": "linear"}, {"rope_type": "default"}),
    ],
)
def test_linear_rope_is_read_as_llama_cpp_reads_it(
    metadata: dict[str, Any], expected: dict[str, Any], original: Path, tmp_path: Path
) -> None:
    path = write_gguf(original, tmp_path / "tiny.gguf", metadata=metadata)

    rope = json.loads((converted(path, tmp_path) / "config.json").read_text())["rope_parameters"]

    assert rope == {"rope_theta": 10_000.0, **expected}


def test_a_part_of_a_split_file_is_refused_as_what_it_is(original: Path, tmp_path: Path) -> None:
    path = write_gguf(original, tmp_path / "tiny.gguf", metadata={"split.no": 1, "split.count": 3})

    assert "part 2 of 3" in refused(path, tmp_path)


def test_unknown_rope_factors_are_refused(original: Path, tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.linspace(1, 3, 8, dtype=np.float32)}

    assert "unknown way" in refused(write_gguf(original, tmp_path / "tiny.gguf", tensors=factors), tmp_path)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "gemma"}, "'gemma'"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.dimension_count": 8}, "8 of 16"),
        ({"llama.rope.scaling.type": "yarn"}, "'yarn'"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.pre": "mystery"}, "'mystery'"),
        ({"llama.attention.head_count": 0}, "num_attention_heads"),
    ],
)
def test_what_is_not_supported_is_named(metadata: dict[str, Any], named: str, original: Path, tmp_path: Path) -> None:
    assert named in refused(write_gguf(original, tmp_path / "tiny.gguf", metadata=metadata), tmp_path)


def test_a_tensor_without_a_place_is_named(original: Path, tmp_path: Path) -> None:
    path = write_gguf(original, tmp_path / "tiny.gguf", tensors={"blk.0.attn_sinks.weight": np.ones(6, np.float32)})

    assert "'blk.0.attn_sinks.weight'" in refused(path, tmp_path)


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    original = tiny_llama(tmp_path)
    tensors = load_file(original / "model.safetensors")
    tensors["model.norm.weight"] = torch.full((48,), float("nan"))
    save_file(tensors, original / "model.safetensors")

    assert "output_norm.weight" in refused(write_gguf(original, tmp_path / "tiny.gguf"), tmp_path)


def test_a_file_cut_anywhere_is_refused(original: Path, tmp_path: Path) -> None:
    whole = write_gguf(original, tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(64), *range(64, len(whole), len(whole) // 80), len(whole) - 33]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            GgufFile(cut)


def test_damaged_files_are_refused_or_read_but_nothing_else(original: Path, tmp_path: Path) -> None:
    """Random bytes in the header: a ModelError or a conversion, never another error, never a long wait."""
    whole = write_gguf(original, tmp_path / "tiny.gguf").read_bytes()
    rng = random.Random(0)
    damaged = tmp_path / "damaged.gguf"
    for round_number in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(2000)] = rng.randrange(256)
        damaged.write_bytes(data)
        folder = tmp_path / str(round_number)
        folder.mkdir()
        try:
            converted(damaged, folder)
        except ModelError:
            continue


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"GGUF",
        b"GGML" + bytes(100),
        b"GGUF" + struct.pack("<I", 1) + bytes(100),
        b"GGUF" + struct.pack(">I", 3) + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0) + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**61) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 5) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0) + bytes(100),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 8, 999, 0) + bytes(100),
    ],
)
def test_counts_larger_than_the_file_are_not_believed(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header)

    with pytest.raises(ModelError, match=r"bad\.gguf"):
        GgufFile(path)
