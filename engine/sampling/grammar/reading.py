"""The model's tokenizer as llguidance needs it.

llguidance can read a tokenizer.json itself, but it then takes every added token that looks like `<this>` for a control
token, whose letters no grammar can write, while it still expects that very token where a grammar demands the letters:
such a grammar cannot be followed. So it is told here what the file says: an added token that is not special is text
like any other, and a special one is never made of letters.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from engine.sampling.grammar.token_bytes import TokenBytes
from engine.sampling.grammar.vocabulary import within


def read_tokenizer(tokenizer_json: bytes, vocab_size: int, ends: list[int]) -> LLTokenizer:
    """`ends`: the tokens that end a text. Raises ValueError."""
    source = within(tokenizer_json, vocab_size) or tokenizer_json
    tokenizer: Any = TokenizerWrapper(_Vocabulary(source, vocab_size, ends))
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=ends or None)


class _Vocabulary:
    """In the shape that llguidance's TokenizerWrapper wants."""

    bos_token_id = None

    def __init__(self, tokenizer_json: bytes, vocab_size: int, ends: list[int]) -> None:
        description = json.loads(tokenizer_json)
        for part in ("normalizer", "pre_tokenizer"):
            description[part] = _without_prefix(description.get(part))
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(description))
        except Exception as error:  # the tokenizers library raises plain Exception
            raise ValueError(f"the model's tokenizer.json cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        bytes_of = TokenBytes(self._tokenizer)
        self.tokens = [bytes_of(token) for token in range(vocab_size)]
        added = description.get("added_tokens") or []
        special = {token["id"] for token in added if token.get("special")} | set(ends)
        self.special_token_ids = sorted(token for token in special if token < vocab_size)
        self.eos_token_id = ends[0] if ends else self.special_token_ids[0] if self.special_token_ids else 0

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8"), add_special_tokens=False).ids


def _without_prefix(part: Any) -> Any:
    """A grammar's text goes on in the middle of an answer: nothing puts a space before it."""
    if not isinstance(part, dict):
        return part
    for steps in ("normalizers", "pretokenizers"):
        if steps in part:
            kept = [_without_prefix(step) for step in part[steps] if step.get("type") != "Prepend"]
            return {**part, steps: kept}
    if part.get("type") == "Prepend":
        return None
    if part.get("type") == "Metaspace":
        return {**part, "prepend_scheme": "never", "add_prefix_space": False}
    if part.get("type") == "ByteLevel":
        return {**part, "add_prefix_space": False}
    return part
