"""The bytes behind each token: a token may be part of a character, which its text alone cannot say.

Two families: byte-level BPE writes each byte as a printable character (GPT-2's `bytes_to_unicode`), and the others
write text, with `\u2581` for a space and `<0xE2>` for a byte that is no text. Knows no model and no request.
"""

from __future__ import annotations

import re

import msgspec
from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items()}
        decoder = msgspec.json.decode(tokenizer.to_str()).get("decoder") or {}
        parts = [decoder, *decoder.get("decoders", ())]
        byte_level = any(part.get("type") == "ByteLevel" for part in parts)
        self._bytes = {character: byte for byte, character in enumerate(_alphabet())} if byte_level else None

    def __call__(self, token: int) -> bytes:
        """Empty for an id that no token has (models have more rows than tokens)."""
        written = self._added.get(token) or self._tokenizer.id_to_token(token) or ""
        if token in self._added:
            return written.encode()
        if self._bytes is not None and self._bytes.keys() >= set(written):
            return bytes(self._bytes[character] for character in written)
        if byte := _BYTE.fullmatch(written):
            return bytes.fromhex(byte[1])
        return written.replace("\u2581", " ").encode()


def _alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where it prints, else the next one from 256 on."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters, spare = [], 256
    for byte in range(256):
        characters.append(chr(byte) if byte in prints else chr(spare))
        spare += byte not in prints
    return characters
