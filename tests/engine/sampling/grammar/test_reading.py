"""Grammars over tokenizers whose marks are tokens of their own, as those of every Qwen are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.protocol import Grammar
from engine.sampling.grammar.compile import GrammarCompiler, Matcher
from engine.sampling.grammar.reading import read_tokenizer
from tests.models import VOCAB, add_token, write_tokenizer

END = 2
MARK = "<tool_call>"


def follow(matcher: Matcher, tokens: list[int]) -> bool:
    """Every token may come where it comes, and the text may end behind them."""
    for token in tokens:
        if token not in allowed(matcher):
            return False
        if matcher.take(token):
            return not matcher.error
    return END in allowed(matcher)


def allowed(matcher: Matcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist()


def compiled(folder: Path, grammar: Grammar) -> Matcher:
    (folder / "config.json").write_text(json.dumps({"eos_token_id": END}))
    return GrammarCompiler(folder, VOCAB).compile(grammar).result(30).fork()


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="choice", text=json.dumps([f"{MARK}A"])),
        Grammar(kind="regex", text=f"{MARK}A"),
        Grammar(kind="lark", text=f'start: "{MARK}" "A"'),
        Grammar(kind="gbnf", text=f'root ::= "{MARK}A"'),
        Grammar(kind="json_schema", text=json.dumps({"const": f"{MARK}A"})),
    ],
)
def test_text_that_spells_an_added_token_can_be_forced(tmp_path: Path, grammar: Grammar) -> None:
    write_tokenizer(tmp_path)
    added = add_token(tmp_path, MARK, special=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = f'"{MARK}A"' if grammar.kind == "json_schema" else f"{MARK}A"
    tokens = tokenizer.encode(text).ids
    assert added in tokens
    assert follow(compiled(tmp_path, grammar), tokens)


def test_text_that_spells_a_special_token_is_written_with_letters(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    added = add_token(tmp_path, MARK, special=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    letters = tokenizer.encode(f"{MARK}A").ids
    assert added not in letters
    choice = Grammar(kind="choice", text=json.dumps([f"{MARK}A"]))
    assert follow(compiled(tmp_path, choice), letters)
    assert not follow(compiled(tmp_path, choice), [added])
    by_id = Grammar(kind="lark", text=f'start: <[{added}]> "A"')
    assert follow(compiled(tmp_path, by_id), [added, *tokenizer.encode("A").ids])


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("choice", '["yes", "no"]', "yes"),
        ("regex", "[a-z]+", "block"),
        ("json_object", "", '{"a": 1}'),
        ("json_schema", '{"const": 7}', "7"),
        ("lark", 'start: "yes"', "yes"),
        ("gbnf", 'root ::= "yes"', "yes"),
    ],
)
def test_a_grammar_begins_behind_the_mark_of_the_one_around_it(
    tmp_path: Path, special: bool | None, gap: str, kind: str, text: str, answer: str
) -> None:
    write_tokenizer(tmp_path)
    mark = "</think>"
    added = None if special is None else add_token(tmp_path, mark, special=special)
    close = f"before <[{added}]> gap" if special else "before gap"
    free = "before: /(?s:.*)/" if special else f'before[suffix="{mark}"]: /(?s:.*)/'
    around = f"start: {close} @answer\n{free}\ngap: /\\n{{0,2}}/\n"
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    grammar = Grammar(kind=kind, text=text, around=around)  # type: ignore[arg-type]
    matcher = compiled(tmp_path, grammar)
    assert END not in allowed(matcher)  # it may not end within its thoughts
    assert follow(matcher.fork(), tokenizer.encode(f'the <b> of {{"a": 1}}\n{mark}{gap}{answer}').ids)
    assert not follow(matcher.fork(), tokenizer.encode(f"the{mark}{gap}!").ids)


def test_tokens_are_the_bytes_that_llguidance_reads_from_the_file(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    source = (tmp_path / "tokenizer.json").read_bytes()
    ours, theirs = read_tokenizer(source, VOCAB, [END]), LLTokenizer(source.decode(), n_vocab=VOCAB, eos_token=[END])
    assert [ours.decode_bytes([token]) for token in range(VOCAB)] == [
        theirs.decode_bytes([token]) for token in range(VOCAB)
    ]


def test_no_space_comes_before_a_text_of_sentencepiece(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "y", "e", "s", "ye", "yes", "\u2581yes"]
    merges = [("y", "e"), ("ye", "s"), ("\u2581", "yes")]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)])
    old = read_tokenizer(tokenizer.to_str().encode(), len(pieces), [2])
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    new = read_tokenizer(tokenizer.to_str().encode(), len(pieces), [2])
    for one in (old, new):
        assert one.tokenize_str("yes") == [8]
        assert one.decode_bytes([9]) == b" yes"
