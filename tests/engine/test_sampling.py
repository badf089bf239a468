"""Sampling through the whole engine: what a request asks for holds whatever happens to it on the way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from engine.core import EngineCore
from engine.models.loading.load import LoadedModel
from engine.protocol import BeamParams, Grammar, StepOutputs, TokenLogprobs, TokenOutput, decode_reply, encode
from tests.engine.fakes import run, tokens_of
from tests.engine.test_equality import ask, load, make_core
from tests.models import VOCAB, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(tiny: Path) -> LoadedModel:
    return load(tiny)


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


def some_prompt(seed: int, length: int = 30) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def one(model: LoadedModel, prompt: list[int], max_tokens: int, n: int = 1, **sampling: Any) -> list[TokenOutput]:
    """The outputs of a request alone in a large pool."""
    core = make_core(model, 100, 8)
    core.add(ask("r", prompt, max_tokens, n=n, sampling=sampling))
    return run(core)["r"]


# -- which token ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "processor"),
    [
        ({"repetition_penalty": 1.3}, RepetitionPenaltyLogitsProcessor(1.3)),
        ({"repetition_penalty": 0.8}, RepetitionPenaltyLogitsProcessor(0.8)),
        ({"bad_token_ids": tuple(range(0, VOCAB, 2))}, SuppressTokensLogitsProcessor(list(range(0, VOCAB, 2)))),
        (
            {"min_tokens": 20, "stop_token_ids": tuple(range(100, 400))},
            MinNewTokensLengthLogitsProcessor(30, 20, list(range(100, 400))),
        ),
    ],
    ids=["repetition", "encouraged repetition", "bad tokens", "min tokens"],
)
def test_greedy_answers_are_those_of_transformers_with_its_processor(
    model: LoadedModel, reference: Any, sampling: dict[str, Any], processor: Any
) -> None:
    for seed in range(3):
        prompt = some_prompt(seed)
        stop = list(sampling.get("stop_token_ids", [2]))
        expected = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([processor]),
        )[0].tolist()[len(prompt) :]

        assert tokens_of(one(model, prompt, 24, **sampling)) == expected
        assert tokens_of(one(model, prompt, 24)) != expected, "the plain answer is another"


def test_frequency_and_presence_count_what_was_generated(model: LoadedModel, reference: Any) -> None:
    """OpenAI's formula, applied by hand to transformers' logits."""
    prompt = some_prompt(4)
    answer: list[int] = []
    with torch.inference_mode():
        for _ in range(24):
            logits = reference(torch.tensor([[*prompt, *answer]])).logits[0, -1].double()
            for token in set(answer):
                logits[token] -= 0.8 * answer.count(token) + 0.5
            answer.append(int(logits.argmax()))

    penalised = one(model, prompt, 24, frequency_penalty=0.8, presence_penalty=0.5, stop_token_ids=())

    assert tokens_of(penalised) == answer
    assert tokens_of(one(model, prompt, 24, stop_token_ids=())) != answer


def test_bias_and_allowed_tokens_say_what_may_come(model: LoadedModel) -> None:
    prompt = some_prompt(5)
    hot = {"temperature": 2.0, "stop_token_ids": ()}

    allowed = tokens_of(one(model, prompt, 40, allowed_token_ids=(7, 8, 9), bad_token_ids=(8,), **hot))
    biased = tokens_of(one(model, prompt, 10, logit_bias=((77, 100.0),), **hot))

    assert set(allowed) == {7, 9}
    assert biased == [77] * 10


def test_min_p_of_one_is_greedy_at_any_temperature(model: LoadedModel) -> None:
    prompt = some_prompt(6)
    assert tokens_of(one(model, prompt, 10, temperature=5.0, min_p=1.0)) == tokens_of(one(model, prompt, 10))


def test_a_stop_token_ends_the_answer_as_soon_as_min_tokens_are_there(model: LoadedModel) -> None:
    outputs = one(model, some_prompt(7), 20, stop_token_ids=(7,), logit_bias=((7, 100.0),), min_tokens=5)

    assert [token == 7 for token in tokens_of(outputs)] == [False] * 5 + [True]
    assert outputs[-1].finish_reason == "stop"


# -- log probabilities ---------------------------------------------------------------------------


def expected_logprobs(reference: Any, tokens: list[int], first: int, count: int) -> list[TokenLogprobs]:
    """Of tokens[first:], by transformers, in float64."""
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0].double()
    found = []
    for position in range(first, len(tokens)):
        row, token = logits[position - 1].log_softmax(-1), tokens[position]
        top = row.topk(count)
        rank = 1 + int((row > row[token]).sum())
        pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        found.append(TokenLogprobs(token, float(row[token]), rank, pairs))
    return found


def agree(found: list[TokenLogprobs], expected: list[TokenLogprobs]) -> bool:
    """Equal but for rounding in float32."""

    def names(logprobs: TokenLogprobs) -> tuple[int, int, list[int]]:
        return logprobs.token, logprobs.rank, [token for token, _ in logprobs.top]

    def numbers(logprobs: TokenLogprobs) -> list[float]:
        return [logprobs.logprob, *(value for _, value in logprobs.top)]

    return list(map(names, found)) == list(map(names, expected)) and [
        number for logprobs in found for number in numbers(logprobs)
    ] == pytest.approx([number for logprobs in expected for number in numbers(logprobs)], abs=1e-4)


def logprobs_of(outputs: list[TokenOutput], index: int = 0) -> list[TokenLogprobs]:
    return [logprobs for output in outputs if output.index == index for logprobs in output.logprobs]


def prompt_logprobs_of(outputs: list[TokenOutput]) -> list[TokenLogprobs]:
    return [logprobs for output in outputs for logprobs in output.prompt_logprobs]


@pytest.mark.parametrize("count", [0, 5, 20])
def test_logprobs_are_those_of_the_model_before_anything_shapes_them(
    model: LoadedModel, reference: Any, count: int
) -> None:
    prompt = some_prompt(8)
    shaped = {"temperature": 0.7, "repetition_penalty": 1.5, "logit_bias": ((9, 3.0),), "top_k": 50}
    outputs = one(model, prompt, 12, logprobs=count, **shaped)
    tokens = tokens_of(outputs)

    assert agree(logprobs_of(outputs), expected_logprobs(reference, prompt + tokens, len(prompt), count))
    assert tokens == tokens_of(one(model, prompt, 12, **shaped)), "asking changes nothing"
    assert any(logprobs.rank > 1 for logprobs in logprobs_of(outputs))


def test_each_answer_has_its_own_logprobs_and_the_prompts_come_once(model: LoadedModel, reference: Any) -> None:
    prompt = some_prompt(9)
    outputs = one(model, prompt, 6, n=3, temperature=1.0, logprobs=2, prompt_logprobs=3)

    assert agree(prompt_logprobs_of(outputs), expected_logprobs(reference, prompt, 1, 3))
    for index in range(3):
        tokens = tokens_of(outputs, index)
        expected = expected_logprobs(reference, prompt + tokens, len(prompt), 2)
        assert agree(logprobs_of(outputs, index), expected)


@pytest.mark.parametrize("policy", ["paged", "contiguous-max"])
@pytest.mark.parametrize("step_tokens", [1, 7, 512])
def test_prompt_logprobs_do_not_depend_on_chunks_nor_on_what_is_cached(
    model: LoadedModel, reference: Any, step_tokens: int, policy: str
) -> None:
    prompt = some_prompt(10, 45)
    core = make_core(model, 100, 8, step_tokens=step_tokens, policy=policy)
    core.add(ask("warm", prompt, 3, session="chat", keep=True))
    run(core)
    core.add(ask("asks", [*prompt, 5], 3, session="chat", sampling={"prompt_logprobs": 1}))
    outputs = run(core)["asks"]

    assert agree(prompt_logprobs_of(outputs), expected_logprobs(reference, [*prompt, 5], 1, 1))
    assert outputs[-1].cached_tokens == 0
    assert not any(output.miss for output in outputs)
    first_token = next(place for place, output in enumerate(outputs) if output.tokens)
    assert not any(output.prompt_logprobs for output in outputs[first_token:]), "all before the first token"


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_preempted_half_way_tells_each_logprob_once(
    model: LoadedModel, reference: Any, prefix_cache: bool
) -> None:
    core = make_core(model, 12, 8, step_tokens=2, prefix_cache=prefix_cache)
    prompt = some_prompt(13, 60)
    core.add(ask("older", some_prompt(14, 8), 60, sampling={"stop_token_ids": ()}))
    core.step()
    core.add(ask("asks", prompt, 2, sampling={"prompt_logprobs": 1}))
    outputs: list[TokenOutput] = []
    while core.scheduler.preemptions == 0:
        outputs += core.step()[0]
    told_before = len(prompt_logprobs_of(outputs))
    outputs += run(core)["asks"]

    assert 0 < told_before < len(prompt) - 1
    assert agree(prompt_logprobs_of(outputs), expected_logprobs(reference, prompt, 1, 1))


def test_a_prompt_longer_than_what_is_scored_at_once(model: LoadedModel, reference: Any) -> None:
    prompt = some_prompt(11, 200)
    outputs = one(model, prompt, 1, prompt_logprobs=0)

    assert agree(prompt_logprobs_of(outputs), expected_logprobs(reference, prompt, 1, 0))


def test_logprobs_survive_the_wire(model: LoadedModel) -> None:
    outputs = one(model, some_prompt(12), 3, logprobs=2, prompt_logprobs=1)
    message = StepOutputs(step=0, outputs=outputs)

    assert decode_reply(encode(message)) == message


# -- whatever happens on the way -----------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 1.0, "seed": 3, "min_p": 0.01},
    "penalties": {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    "presence": {"presence_penalty": 1.0, "logit_bias": ((5, 2.0), (6, -3.0))},
    "tokens": {"temperature": 1.5, "seed": 5, "bad_token_ids": (1, 3, 4), "min_tokens": 9, "stop_token_ids": (2, 8)},
    "logprobs": {"temperature": 1.0, "seed": 6, "logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 1, "logprobs": 1},
}


def crowd(core: EngineCore) -> tuple[dict[str, list[TokenOutput]], set[str]]:
    """Three requests of each kind at once, some with several answers; and how sequences were preempted."""
    methods: set[str] = set()
    for number in range(3):
        for kind, sampling in KINDS.items():
            prompt = some_prompt(100 + number, 12 + 7 * number)
            core.add(ask(f"{kind} {number}", prompt, 16, n=1 + number % 2, sampling=sampling))
    return run(core, watch=lambda report: methods.update(p.method for p in report.preempted)), methods


@pytest.mark.parametrize("swap", [False, True], ids=["recompute", "swap"])
def test_a_crowd_in_a_small_pool_says_what_it_says_with_endless_memory(model: LoadedModel, swap: bool) -> None:
    expected, none = crowd(make_core(model, 2000, 8))
    core = make_core(model, 12, 8, step_tokens=40, host_slots=100 if swap else 0)
    if swap:
        core.costs.saw_blocks(1, 1e-9)  # moving blocks is cheaper than anything
    outputs, methods = crowd(core)

    assert (none, methods) == (set(), {"swap"} if swap else {"recompute"})
    for name, answers in expected.items():
        for index in range(2):
            assert tokens_of(outputs[name], index) == tokens_of(answers, index), name
            assert agree(logprobs_of(outputs[name], index), logprobs_of(answers, index))
        assert agree(prompt_logprobs_of(outputs[name]), prompt_logprobs_of(answers))
    assert core.blocks.pool.available == 12


# -- what cannot be honoured ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids has token id 512"),
        ({"logit_bias": ((VOCAB, 1.0),)}, "logit_bias has token id 512; this model's are 0..511"),
        ({"logit_bias": ((5, 1.0), (5, 2.0))}, "logit_bias names a token twice"),
        ({"allowed_token_ids": (3, 600)}, "allowed_token_ids has token id 600"),
        ({"bad_token_ids": (600,)}, "bad_token_ids has token id 600"),
        ({"min_tokens": 9}, "min_tokens is 9, but max_tokens is 8"),
        ({"allowed_token_ids": (3, 4), "bad_token_ids": (4, 3)}, "leave no token"),
        ({"allowed_token_ids": (2,), "min_tokens": 1}, "leave no token"),
        ({"bad_token_ids": tuple(range(VOCAB))}, "leave no token"),
        ({"grammar": Grammar(kind="regex", text="a"), "bad_token_ids": (4,)}, "leave out allowed_token_ids"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(model: LoadedModel, sampling: dict[str, Any], words: str) -> None:
    core = make_core(model, 20, 8)
    core.add(ask("bad", [5, 6], 8, sampling=sampling))
    core.add(ask("good", [5, 6], 3))
    outputs = run(core)

    assert outputs["bad"][0].code == "bad_request"
    assert words in outputs["bad"][0].message
    assert len(tokens_of(outputs["good"])) == 3


def test_beam_search_names_all_that_it_cannot_be_combined_with(model: LoadedModel) -> None:
    core = make_core(model, 20, 8)
    sampling = {"logprobs": 1, "min_tokens": 2, "presence_penalty": 0.1}
    core.add(ask("r", [5, 6], 8, beam=BeamParams(width=2), sampling=sampling))
    (output,) = run(core)["r"]

    assert output.code == "bad_request"
    assert output.message == "beam search cannot be combined with presence_penalty, min_tokens, logprobs"
