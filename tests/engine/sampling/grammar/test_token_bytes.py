"""The bytes of tokens: put together they are the text's, in both families of tokenizers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from engine.sampling.grammar.token_bytes import TokenBytes
from tests.daemons import model_folder


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_file(str(model_folder(tmp_path_factory.mktemp("bl")) / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """As Llama 2 has it."""
    tokens = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "▁b"]
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@given(text=st.text())
def test_byte_level_tokens_are_the_texts_bytes(byte_level: Tokenizer, text: str) -> None:
    tokens = byte_level.encode(text, add_special_tokens=False).ids
    assert b"".join(map(TokenBytes(byte_level), tokens)) == text.encode()


def test_byte_tokens_are_one_byte_each(byte_fallback: Tokenizer) -> None:
    tokens = byte_fallback.encode("a b🌶", add_special_tokens=False).ids
    found = [TokenBytes(byte_fallback)(token) for token in tokens]
    assert b"".join(found) == "a b🌶".encode()
    assert found[-4:] == [bytes([byte]) for byte in "🌶".encode()]


def test_a_control_token_is_its_name_and_no_token_is_nothing(byte_level: Tokenizer) -> None:
    bytes_of = TokenBytes(byte_level)
    assert bytes_of(2) == b"<|im_end|>"
    assert bytes_of(10**6) == b""
