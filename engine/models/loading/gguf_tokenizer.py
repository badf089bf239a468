"""The tokenizer that a GGUF file describes, as tokenizer.json.

Byte-level BPE is built here, because how the text is split before merging (`tokenizer.ggml.pre`) decides which tokens
come out, and transformers 5.24 leaves some splits out: without SmolLM2's, "  1" becomes other tokens than the model
was trained on. A SentencePiece vocabulary ("llama") is left to transformers. No other kind is guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from engine.models.errors import ModelError

_CONTROL, _USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type: matched whole in text; control tokens are special, too."""

# Splits of llama.cpp (src/llama-vocab.cpp) and of the models' own tokenizer.json.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


def _pre_tokenizer(name: str) -> PreTokenizer:
    if name in ("gpt-2", "default"):
        return ByteLevel(add_prefix_space=False)
    if name in ("smollm", "starcoder", "refact", "command-r"):
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if name in ("llama3", "llama-v3", "llama-bpe"):
        return _split(_LLAMA3)
    if name in ("qwen2", "deepseek-r1-qwen"):
        return _split(_QWEN2)
    raise ModelError(f"The GGUF file splits text by the rule {name!r} (tokenizer.ggml.pre), which is not supported.")


def build_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer of the GGUF file at `path`, whose metadata is given. Raises ModelError."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(metadata)
    if kind == "llama":
        return _sentencepiece(path)
    raise ModelError(f"The GGUF file has a tokenizer of kind {kind!r}; byte-level BPE and SentencePiece are supported.")


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    if not isinstance(tokens, list) or not isinstance(merges, list) or not isinstance(kinds, list):
        raise ModelError("The GGUF file's tokenizer has no tokens or no merges.")
    vocab = {str(token): index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or any(str(merge).count(" ") != 1 for merge in merges):
        raise ModelError("The GGUF file's tokenizer has a token twice, or a merge that is no pair.")
    pairs = [(left, right) for left, right in (str(merge).split(" ") for merge in merges)]
    pre = metadata.get("tokenizer.ggml.pre", "default")
    try:
        model = BPE(vocab=vocab, merges=pairs, ignore_merges=pre in ("llama3", "llama-v3", "llama-bpe"))
    except Exception as error:  # tokenizers raises plain Exception for a merge outside the vocabulary
        raise ModelError(f"The GGUF file's tokenizer is inconsistent: {error}.") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = ByteLevelDecoder()
    added = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    return tokenizer


def _sentencepiece(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer  # two seconds, and only this kind needs it

    try:
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    except (ValueError, KeyError, OSError, TypeError) as error:
        raise ModelError(f"The SentencePiece tokenizer in {path} cannot be converted: {error}.") from error
