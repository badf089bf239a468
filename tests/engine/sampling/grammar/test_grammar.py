"""Structured output: what comes out follows the grammar, and a grammar harms nobody but its own request."""

from __future__ import annotations

import json
import random
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.core import EngineCore
from engine.models.loading.load import LoadedModel
from engine.protocol import Grammar, GrammarKind, TokenOutput
from engine.sampling.grammar import queue as grammar_queue
from engine.sampling.grammar.compile import GrammarCompiler, Matcher, end_tokens
from engine.sampling.grammar.jobs import Compiling
from engine.sampling.grammar.queue import GrammarError
from engine.sampling.grammar.trial import Trial
from tests.engine.fakes import run, tokens_of
from tests.engine.test_equality import ask, load, make_core
from tests.models import VOCAB, tiny_llama, write_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

END = 2

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["old", "young"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        {"name", "age"} <= person.keys() <= PERSON["properties"].keys()
        and len(person["name"]) <= 6
        and person["age"] in range(121)
        and set(person.get("tags", [])) <= {"old", "young"}
        and len(person.get("tags", [])) <= 2
    )


PERSON_GRAMMAR = Grammar(kind="json_schema", text=json.dumps(PERSON))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


@pytest.fixture(scope="module")
def compiler(tiny: Path) -> GrammarCompiler:
    return GrammarCompiler(tiny, VOCAB)


@pytest.fixture(scope="module")
def model(tiny: Path) -> LoadedModel:
    return load(tiny)


def allowed(matcher: Matcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist()


def walk(matcher: Matcher, rng: random.Random) -> list[int]:
    """Random tokens of the masks, to the end."""
    tokens: list[int] = []
    while True:
        tokens.append(rng.choice(allowed(matcher)))
        if matcher.take(tokens[-1]):
            return tokens


@pytest.mark.parametrize(
    ("kind", "text", "holds"),
    [
        ("regex", "[a-f]{3,5}-[0-9]+x", lambda text: re.fullmatch("[a-f]{3,5}-[0-9]+x", text)),
        ("choice", json.dumps(["yes", "no", 'per"haps\n']), lambda text: text in ("yes", "no", 'per"haps\n')),
        ("lark", 'start: "a" start "b" | "-"', lambda text: re.fullmatch("a*-b*", text) and len(text) % 2),
        ("gbnf", 'root ::= "x" root | "y"', lambda text: re.fullmatch("x*y", text)),
        ("json_schema", PERSON_GRAMMAR.text, is_person),
        (
            "json_schema",
            '{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}',
            lambda text: len(json.loads(text)) <= 3,
        ),
    ],
)
def test_every_walk_through_the_masks_follows_the_grammar(
    compiler: GrammarCompiler, tokenizer: Tokenizer, kind: GrammarKind, text: str, holds: Any
) -> None:
    start = compiler.compile(Grammar(kind=kind, text=text)).result()
    said = set()
    for seed in range(10):
        matcher = start.fork()
        answer = tokenizer.decode(walk(matcher, random.Random(seed)))
        assert not matcher.error
        assert holds(answer), answer
        said.add(answer)
    assert len(said) > 1


def test_any_json_object_is_one(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(Grammar(kind="json_object")).result().fork()
    for token in tokenizer.encode('{"a": [1, {"b": null}], "c": "d"}').ids:
        assert token in allowed(matcher)
        ended = matcher.take(token)
    assert ended


def test_the_end_token_comes_where_the_text_may_end_and_no_other_special_one(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar(kind="regex", text=".+")).result().fork()
    assert {0, 1, END}.isdisjoint(allowed(matcher))
    assert not matcher.take(allowed(matcher)[0])
    assert END in allowed(matcher)
    assert {0, 1}.isdisjoint(allowed(matcher))
    assert matcher.take(END)


def test_forks_go_their_own_ways(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    start = compiler.compile(Grammar(kind="choice", text='["ab", "ba"]')).result()
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    first, second = start.fork(), start.fork()
    assert not first.take(a)
    third = first.fork()
    assert not second.take(b)
    assert first.take(b)
    assert second.take(a)
    assert third.take(b)
    assert {a, b} <= set(allowed(start))


def test_blanks_between_the_parts_of_a_json_text_have_an_end(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(PERSON_GRAMMAR).result().fork()
    brace, blank = (tokenizer.encode(text).ids[0] for text in ("{", " "))
    matcher.take(brace)
    blanks = 0
    while blank in allowed(matcher):
        matcher.take(blank)
        blanks += 1
    assert blanks == 32


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", "foo**(", "unclosed group"),
        ("regex", "(?=a)", "look-around"),
        ("lark", "start: other", 'unknown name: "other"'),
        ("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000, "nested"),
        ("gbnf", "root ::= (", "Expected ')'"),
        ("gbnf", "root ::= other", "'other' not found"),
        ("gbnf", "root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "recursion"),
        ("gbnf", "\n" * 2**17, "No 'root' rule"),
        ("choice", '["a", 1]', "Expected `str`"),
        ("choice", "[]", "no text to choose"),
        ("json_schema", "{", "json_schema: "),
        ("json_schema", '{"type": "objekt"}', "Invalid type: objekt"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"$ref": "http://example.com/x"}', "does not fetch"),
        ("json_schema", '{"allOf": [{"$ref": "#"}]}', "json_schema: "),
        ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, "recursion limit"),
    ],
)
def test_a_bad_grammar_says_what_is_wrong_with_it(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, words: str
) -> None:
    with pytest.raises(GrammarError, match=re.escape(words)):
        compiler.compile(Grammar(kind=kind, text=text)).result()


def test_a_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    one, other = (Grammar(kind="regex", text=f"once {name}") for name in "ab")

    assert compiler.compile(one) is compiler.compile(Grammar(kind="regex", text="once a"))
    assert compiler.compile(one) is not compiler.compile(other)


def test_end_tokens_are_those_of_both_files(tmp_path: Path) -> None:
    assert end_tokens(tmp_path) == []
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert end_tokens(tmp_path) == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert end_tokens(tmp_path) == [5, 7]


def test_a_model_without_a_tokenizer_takes_no_grammar(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=r"no tokenizer\.json"):
        GrammarCompiler(tmp_path, VOCAB).compile(PERSON_GRAMMAR).result()


def added(folder: Path, *tokens: str) -> None:
    """A tokenizer with more tokens than the model's embedding has rows."""
    write_tokenizer(folder)
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    ways = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    found["added_tokens"] += [{"id": VOCAB + place, "content": token, **ways} for place, token in enumerate(tokens)]
    file.write_text(json.dumps(found))


@pytest.mark.parametrize("more", [1, 40])
def test_tokens_beyond_the_models_embedding_are_in_no_mask(tmp_path: Path, tokenizer: Tokenizer, more: int) -> None:
    added(tmp_path, *(f"[PAD{number}]" for number in range(more)))
    matcher = GrammarCompiler(tmp_path, VOCAB).compile(Grammar(kind="regex", text=r"(\[PAD0\]|x)+")).result()
    for seed in range(5):
        tokens = walk(matcher.fork(), random.Random(seed))
        assert max(tokens) < VOCAB
        assert re.fullmatch(r"(\[PAD0\]|x)+", tokenizer.decode(tokens))


def test_a_vocabulary_larger_than_the_embedding_is_cut_too(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_tokenizer(tmp_path)
    rows = VOCAB - 37
    matcher = GrammarCompiler(tmp_path, rows).compile(PERSON_GRAMMAR).result()
    for seed in range(5):
        tokens = walk(matcher.fork(), random.Random(seed))
        assert max(tokens) < rows
        assert is_person(tokenizer.decode(tokens))


def test_what_failed_is_compiled_again_and_what_was_compiled_is_not(compiler: GrammarCompiler) -> None:
    bad = Grammar(kind="regex", text="(")
    first = compiler.compile(bad)
    assert isinstance(first.exception(), GrammarError)
    assert compiler.compile(bad) is not first


# -- through the engine --------------------------------------------------------------------------


def core_with(model: LoadedModel, compiler: GrammarCompiler | None, num_blocks: int = 200, **more: Any) -> EngineCore:
    return make_core(model, num_blocks, 8, grammars=compiler, **more)


HOT = {"temperature": 1.0, "stop_token_ids": (END,)}


@pytest.fixture(scope="module")
def terse(tokenizer: Tokenizer) -> dict[str, Any]:
    """Against blanks, of which a random model writes as many as it may."""
    blanks = {token for token in range(VOCAB) if tokenizer.decode([token]).isspace()}
    return {**HOT, "logit_bias": tuple((token, -20.0) for token in blanks)}


@pytest.mark.parametrize("stop", [(END,), ()], ids=["with end token", "ignoring it"])
def test_answers_are_texts_of_the_grammar_and_stop_where_it_ends(
    model: LoadedModel, compiler: GrammarCompiler, tokenizer: Tokenizer, stop: tuple[int, ...]
) -> None:
    core = core_with(model, compiler)
    sampling = {**HOT, "stop_token_ids": stop, "grammar": PERSON_GRAMMAR}
    core.add(ask("r", [5, 6, 7], 200, n=3, sampling=sampling))
    core.add(ask("b", [5, 6, 7], 50, sampling={**HOT, "grammar": Grammar(kind="choice", text='["one", "two"]')}))
    outputs = run(core)

    texts = [tokenizer.decode(tokens_of(outputs["r"], index)) for index in range(3)]
    assert all(map(is_person, texts))
    assert len(set(texts)) == 3, "each answer goes its own way"
    assert tokenizer.decode(tokens_of(outputs["b"])) in ("one", "two")
    assert {o.finish_reason for o in outputs["r"] + outputs["b"]} == {None, "stop"}


def test_an_answer_cut_short_has_finish_reason_length(model: LoadedModel, compiler: GrammarCompiler) -> None:
    core = core_with(model, compiler)
    core.add(ask("r", [5], 3, sampling={**HOT, "grammar": PERSON_GRAMMAR}))

    assert run(core)["r"][-1].finish_reason == "length"


@pytest.mark.parametrize("min_tokens", [0, 20])
def test_min_tokens_holds_the_end_back_only_while_something_else_may_come(
    model: LoadedModel, compiler: GrammarCompiler, tokenizer: Tokenizer, min_tokens: int
) -> None:
    core = core_with(model, compiler)
    eager = {**HOT, "logit_bias": ((END, 100.0),), "min_tokens": min_tokens}
    core.add(ask("open", [5], 40, sampling={**eager, "grammar": Grammar(kind="regex", text="[a-z]*")}))
    core.add(ask("shut", [5], 40, sampling={**eager, "grammar": Grammar(kind="regex", text="[a-z]{0,3}")}))
    outputs = run(core)

    assert len(tokens_of(outputs["open"])) == min_tokens + 1
    assert len(tokenizer.decode(tokens_of(outputs["shut"]))) <= 3
    assert outputs["shut"][-1].finish_reason == "stop"


@pytest.mark.parametrize("swap", [False, True], ids=["recompute", "swap"])
def test_preempted_answers_go_on_where_their_grammar_stood(
    model: LoadedModel, compiler: GrammarCompiler, tokenizer: Tokenizer, terse: dict[str, Any], swap: bool
) -> None:
    def crowd(core: EngineCore) -> dict[str, list[TokenOutput]]:
        for number in range(8):
            sampling = {**terse, "seed": number, "grammar": PERSON_GRAMMAR, "repetition_penalty": 1.1}
            core.add(ask(str(number), [5 + number] * (3 + number), 90, n=1 + number % 2, sampling=sampling))
        return run(core)

    expected = crowd(core_with(model, compiler))
    core = core_with(model, compiler, 20, host_slots=100 if swap else 0)
    if swap:
        core.costs.saw_blocks(1, 1e-9)  # moving blocks is cheaper than anything
    outputs = crowd(core)

    assert core.scheduler.preemptions > 0
    for name, answers in expected.items():
        assert tokens_of(outputs[name]) == tokens_of(answers)
        assert is_person(tokenizer.decode(tokens_of(answers)))


# -- waiting -------------------------------------------------------------------------------------


class SlowCompiler(GrammarCompiler):
    """Compiles when the test lets it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, VOCAB)
        self.gate = threading.Event()

    def _compile(self, grammar: Grammar, trial: Trial) -> Matcher:
        self.gate.wait(30)
        return super()._compile(grammar, trial)


@pytest.fixture
def slow(tiny: Path) -> Any:
    compiler = SlowCompiler(tiny)
    yield compiler
    compiler.gate.set()


def constrained(name: str) -> Any:
    return ask(name, [5, 6], 100, sampling={**HOT, "grammar": PERSON_GRAMMAR})


def test_others_go_on_while_a_grammar_is_compiled(model: LoadedModel, slow: SlowCompiler) -> None:
    core = core_with(model, slow)
    core.add(constrained("waits"))
    core.add(ask("goes on", [5, 6], 10))
    outputs: list[TokenOutput] = []
    while not any(output.finish_reason for output in outputs):
        outputs += core.step()[0]
    assert {output.request_id for output in outputs} == {"goes on"}
    assert core.has_work

    slow.gate.set()
    assert run(core)["waits"][-1].finish_reason == "stop"


def test_a_request_that_waits_can_be_aborted_and_its_name_is_taken(model: LoadedModel, slow: SlowCompiler) -> None:
    core = core_with(model, slow)
    core.add(constrained("r"))
    core.add(constrained("r"))
    (refused,) = core.step()[0]
    assert refused.message == "request id 'r' is in use"

    aborted = core.abort("r")
    assert aborted is not None
    assert aborted.finish_reason == "abort"
    assert not core.has_work


def test_a_grammar_that_takes_too_long_ends_its_request(
    model: LoadedModel, slow: SlowCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_queue, "COMPILE_SECONDS", 0.0)
    core = core_with(model, slow)
    core.add(constrained("r"))
    (output,) = run(core)["r"]

    assert output.code == "bad_request"
    assert "not compiled within 0 seconds" in output.message


def test_a_grammar_and_other_masks_go_into_one_step(model: LoadedModel, compiler: GrammarCompiler) -> None:
    # llguidance's masks of a vocabulary that 32 divides have a word more than others
    core = core_with(model, compiler)
    core.add(ask("allowed", [5, 6], 60, sampling={**HOT, "allowed_token_ids": (65, 66), "stop_token_ids": ()}))
    core.add(ask("early", [5, 6], 60, sampling={**HOT, "min_tokens": 50}))
    core.add(constrained("grammar"))
    outputs = run(core)
    assert {name: found[-1].finish_reason for name, found in outputs.items()}["grammar"] == "stop"
    assert set(tokens_of(outputs["allowed"])) <= {65, 66}
    assert len(tokens_of(outputs["early"])) >= 50


def test_a_bad_grammar_ends_only_its_own_request(model: LoadedModel, compiler: GrammarCompiler) -> None:
    core = core_with(model, compiler)
    core.add(ask("bad", [5, 6], 10, sampling={**HOT, "grammar": Grammar(kind="regex", text="(")}))
    core.add(constrained("good"))
    outputs = run(core)

    assert outputs["bad"][0].code == "bad_request"
    assert "unclosed group" in outputs["bad"][0].message
    assert outputs["good"][-1].finish_reason == "stop"


def test_a_compiler_that_breaks_ends_only_its_own_request(model: LoadedModel, tiny: Path) -> None:
    class Breaks(GrammarCompiler):
        def _compile(self, grammar: Grammar, trial: Trial) -> Matcher:
            raise MemoryError("no more")

    core = core_with(model, Breaks(tiny, VOCAB))
    core.add(constrained("r"))
    assert run(core)["r"][0].message == "compiling the grammar failed: MemoryError: no more"


def test_an_engine_without_tokenizer_refuses_grammars(model: LoadedModel) -> None:
    core = core_with(model, None)
    core.add(constrained("r"))
    assert "no tokenizer" in run(core)["r"][0].message


def test_a_grammar_that_meets_a_limit_on_the_way_ends_its_request_with_all_answers(
    model: LoadedModel, compiler: GrammarCompiler
) -> None:
    class Tires:
        """Stands for llguidance's matcher: follows three tokens, then says why it goes no further."""

        taken = 0

        def deep_copy(self) -> Tires:
            return Tires()

        def compute_bitmask(self) -> bytes:
            return b"\xff" * (VOCAB // 8)

        def consume_token(self, token: int) -> bool:
            self.taken += 1
            return self.taken < 3

        def is_stopped(self) -> bool:
            return self.taken >= 3

        def get_error(self) -> str:
            return "too complex\n<state>...</state>" if self.taken >= 3 else ""

    class Tiring(GrammarCompiler):
        def compile(self, grammar: Grammar, tenant: str = "") -> Compiling:
            mask: Future[bytes] = Future()
            mask.set_result(Tires().compute_bitmask())
            future = Compiling(grammar)
            future.set_result(Matcher(Tires(), mask, ThreadPoolExecutor(1)))  # type: ignore[arg-type]
            return future

    core = core_with(model, Tiring(Path(), VOCAB))
    core.add(ask("r", [5, 6], 50, n=2, sampling={"grammar": PERSON_GRAMMAR, "stop_token_ids": ()}))
    outputs = run(core)["r"]

    assert outputs[-1].code == "bad_request"
    assert outputs[-1].message == "the grammar cannot be followed further: too complex"
    assert [output.finish_reason for output in outputs].count("error") == 1
    assert core.blocks.pool.available == 200


# -- the default model ---------------------------------------------------------------------------


def test_the_default_model_answers_in_the_schema_that_was_asked_for(smollm2: Path) -> None:
    text = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    question = "Invent a person."
    prompt = text.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
    model = load(smollm2)
    core = core_with(model, GrammarCompiler(smollm2, model.info.vocab_size))
    sampling = {"stop_token_ids": tuple(end_tokens(smollm2))}
    core.add(ask("plain", prompt, 20, sampling=sampling))
    core.add(ask("person", prompt, 80, sampling={**sampling, "grammar": PERSON_GRAMMAR}))
    core.add(ask("choice", prompt, 9, sampling={**sampling, "grammar": Grammar(kind="choice", text='["yes", "no"]')}))
    answers = {name: text.decode(tokens_of(outputs)) for name, outputs in run(core).items()}

    assert is_person(answers["person"])
    assert answers["choice"] in ("yes", "no")
    assert not answers["plain"].startswith("{"), "without the grammar it says something else"
