"""A tokenizer without the tokens that its model cannot say.

A tokenizer.json may name more tokens than the embedding has rows: a padding token that was added for training, say.
They never come, hence are no part of any mask, and llguidance must not count on them.
"""

from __future__ import annotations

import json
from typing import Any


def within(tokenizer_json: bytes, vocab_size: int) -> bytes | None:
    """The same tokenizer.json with ids below `vocab_size` only; None when there are no others. Raises ValueError."""
    tokenizer: dict[str, Any] = json.loads(tokenizer_json)
    added = [token for token in tokenizer.get("added_tokens") or [] if token["id"] < vocab_size]
    model = tokenizer["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        kept: Any = {token: number for token, number in vocab.items() if number < vocab_size}
    else:  # Unigram: a token's place is its id
        kept = vocab[:vocab_size]
    if len(kept) == len(vocab) and len(added) == len(tokenizer.get("added_tokens") or []):
        return None
    changed = {**model, "vocab": kept}
    if isinstance(vocab, dict) and "merges" in model:
        changed["merges"] = [merge for merge in model["merges"] if _can_be_made(merge, kept)]
    # What adds tokens around a text, or pads it, may name one that is gone; grammars need neither.
    return json.dumps(
        {**tokenizer, "model": changed, "added_tokens": added, "post_processor": None, "padding": None}
    ).encode()


def _can_be_made(merge: str | list[str], vocab: dict[str, int]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in vocab and right in vocab and left + right in vocab
