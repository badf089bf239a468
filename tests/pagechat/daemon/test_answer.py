"""Tokens to text: the deltas add up to the decoding of all tokens, cut before the first stop string."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from pagechat.text.answer import AnswerText
from pagechat.text.detokenize import Detokenizer, StopFilter
from tests.daemons import model_folder
from tests.models import VOCAB

TEXTS = [
    "plain words, and more of them",
    "🌶️ 👨‍👩‍👧‍👦 🏳️‍🌈 e\u0301 ď",
    "漢字かな交じり文。한국어 텍스트",
    "literal \ufffd inside, and at the end \ufffd",
    "  leading and trailing  \n\n\t",
    "",
]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_file(str(model_folder(tmp_path_factory.mktemp("bl")) / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """As Llama 2 has it: words with a leading mark, bytes as tokens of their own, one leading space taken off."""
    words = ["▁", "▁leading", "▁x", "x", "▁the", "中", "a", "b"]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words]
    tokenizer = Tokenizer(
        BPE({token: id_ for id_, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


def streamed(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.feed([token]) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_deltas_add_up_to_the_text(text: str, kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    deltas = streamed(tokenizer, tokens)
    assert "".join(deltas) == tokenizer.decode(tokens)
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


@given(tokens=st.lists(st.integers(0, VOCAB + 3), max_size=60))
def test_any_tokens_at_all_add_up_to_their_decoding(byte_level: Tokenizer, tokens: list[int]) -> None:
    assert "".join(streamed(byte_level, tokens)) == byte_level.decode(tokens)


def test_a_character_that_is_cut_off_ends_as_a_replacement_character(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("ok 🌶", add_special_tokens=False).ids
    assert streamed(byte_level, tokens[:-1])[-1] == "\ufffd"
    assert "".join(streamed(byte_level, tokens[:-1])) == "ok \ufffd"


def test_one_leading_space_is_taken_off_and_no_other(byte_fallback: Tokenizer) -> None:
    tokens = [byte_fallback.token_to_id(token) for token in ("▁", "▁leading", "▁x", "▁x")]
    assert "".join(streamed(byte_fallback, tokens)) == byte_fallback.decode(tokens) == " leading x x"


def test_text_with_no_end_to_its_broken_bytes_still_comes(byte_level: Tokenizer) -> None:
    broken = byte_level.encode("🌶", add_special_tokens=False).ids[1]
    detokenizer = Detokenizer(byte_level)
    assert "\ufffd" in "".join(detokenizer.feed([broken]) for _ in range(200))


def test_special_tokens_are_no_text(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("<|im_start|>hello<|im_end|>", add_special_tokens=False).ids
    assert "".join(streamed(byte_level, tokens)) == "hello"


# -- stop strings -------------------------------------------------------------------------------


def stopped(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    filter_ = StopFilter(stops)
    out = [filter_.feed(piece) for piece in pieces]
    return [*out, filter_.flush()], filter_.hit


def test_a_stop_string_over_several_tokens_leaks_nothing() -> None:
    # vLLM issue 3574: "DEFGHIJ" leaked DEF, G, HI
    assert stopped(["ABC", "DEF", "G", "HI", "JKL"], ["DEFGHIJ"]) == (["ABC", "", "", "", "", ""], True)


def test_only_what_could_still_be_a_stop_string_is_held_back() -> None:
    # SwiftLM pull 132
    assert stopped(["The br", "own f", "ield"], ["own fox"])[0] == ["The br", "", "own field", ""]
    assert stopped(["xo", "o"], ["own fox"])[0] == ["x", "o", "o"]


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert stopped(["a", "b"], []) == (["a", "b", ""], False)


def test_held_text_comes_at_the_end() -> None:
    assert stopped(["maybe sto"], ["stop"]) == (["maybe ", "sto"], False)


def test_a_stop_string_that_begins_again_inside_itself_is_found() -> None:
    out, hit = stopped(list("aabaabaaab"), ["aabaaab"])
    assert ("".join(out), hit) == ("aab", True)


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_result_does_not_depend_on_how_the_text_was_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    # the definition: the stop string that is complete first ends the text
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    out, hit = stopped(pieces, stops)
    assert ("".join(out), hit) == (expected, bool(ends))


def test_an_answer_is_cut_before_its_stop_string(byte_level: Tokenizer) -> None:
    answer = AnswerText(byte_level, ["\n\nuser"])
    deltas = [
        answer.feed([token]).text for token in byte_level.encode("Yes 🌶\n\nuser: and", add_special_tokens=False).ids
    ]
    assert answer.stopped
    assert answer.text == "".join(deltas) == "Yes 🌶"
    assert not answer.finish()


def test_a_stop_string_may_end_in_what_is_flushed(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("ok 🌶", add_special_tokens=False).ids[:-1]
    answer = AnswerText(byte_level, ["\ufffd"])
    assert (answer.feed(tokens) + answer.finish()).text == "ok "
    assert answer.stopped


@pytest.mark.parametrize("stop", ["<|im_end|>", "s<|im_end|>\n", "<|im_end|>\nuser"])
def test_a_stop_string_may_name_a_control_token(byte_level: Tokenizer, stop: str) -> None:
    answer = AnswerText(byte_level, [stop], control={2: "<|im_end|>"})
    tokens = byte_level.encode("Yes<|im_end|>\nuser: and", add_special_tokens=False).ids
    assert 2 in tokens
    text = "".join(answer.feed([token]).text for token in tokens) + answer.finish().text
    assert answer.stopped
    assert text == "Yes"[: -1 if stop.startswith("s") else None]


def test_a_control_token_that_stops_nothing_is_no_text(byte_level: Tokenizer) -> None:
    answer = AnswerText(byte_level, ["<|im_start|>", "nothing"], control={1: "<|im_start|>", 2: "<|im_end|>"})
    tokens = byte_level.encode("Yes<|im_end|> no", add_special_tokens=False).ids
    assert "".join(answer.feed([token]).text for token in tokens) + answer.finish().text == "Yes no"
