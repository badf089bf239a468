"""The runner: steps in, tokens out, equal to transformers' generate; and steps that cannot be right are refused."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.execution.builder import StepBuilder
from engine.execution.runner import Runner
from engine.execution.step_input import StepInput
from engine.execution.tables import InconsistentStep
from engine.models import load
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from engine.protocol import SamplingParams
from engine.requests.sequence import Sequence
from engine.scheduling.step import ScheduledStep, ScheduledTokens
from tests.models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")

GREEDY = SamplingParams(max_tokens=100, temperature=0.0, seed=0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(directory: Path) -> LoadedModel:
    return load(directory, EngineConfig(model=str(directory), dtype="float32"), lambda _: None)


def make_sequence(number: int, tokens: list[int], table: list[int], sampling: SamplingParams = GREEDY) -> Sequence:
    return Sequence(number, str(number), "test", list(tokens), len(tokens), sampling, table=table)


def prompts(count: int, longest: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(512) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def run(runner: Runner, sequences: list[Sequence], new_tokens: int, chunk: int, seed: int = 0) -> list[list[int]]:
    """Steps of random chunks of random sequences, prefill and decode mixed, until each has its new tokens."""
    rng = random.Random(seed)
    builder = StepBuilder(len(sequences), runner.block_size, 512)
    step = 0
    while unfinished := [s for s in sequences if s.generated < new_tokens]:
        spans = [
            ScheduledTokens(s, s.computed, rng.randint(1, min(chunk, len(s.tokens) - s.computed)))
            for s in rng.sample(unfinished, rng.randint(1, len(unfinished)))
        ]
        sampling = [span.sequence for span in spans if span.samples]
        tokens = runner.execute(builder.build(ScheduledStep(step, spans))).tokens
        for span in spans:
            span.sequence.computed += span.count
        for sequence, token in zip(sampling, tokens, strict=True):
            sequence.tokens.append(token)
        step += 1
    return [s.tokens[s.prompt_len :] for s in sequences]


def step_of(spans: list[ScheduledTokens], **more: list[tuple[int, int]]) -> StepInput:
    """A step for a runner that has seen none before."""
    return StepBuilder(8, 8, 512).build(ScheduledStep(0, spans, **more))


def scattered(lengths: list[int], block_size: int, seed: int = 0) -> tuple[list[list[int]], int]:
    """Block tables for sequences of these lengths over a pool in random order; and the pool's size."""
    needed = [-(-length // block_size) for length in lengths]
    blocks = list(range(1, sum(needed) + 1))
    random.Random(seed).shuffle(blocks)
    return [[blocks.pop() for _ in range(n)] for n in needed], sum(needed)


@pytest.mark.parametrize(("block_size", "chunk"), [(8, 1), (8, 13), (16, 16), (32, 100), (128, 7)])
def test_greedy_tokens_equal_transformers_generate(
    directory: Path, model: LoadedModel, block_size: int, chunk: int
) -> None:
    """Twelve prompts together, in chunks and orders that differ, over scattered blocks."""
    given = prompts(12, 70)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = []
    for prompt in given:
        ids = torch.tensor([prompt])
        out = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False, eos_token_id=None
        )
        expected.append(out[0, len(prompt) :].tolist())
    tables, num_blocks = scattered([len(p) + 15 for p in given], block_size)
    runner = Runner(model, num_blocks, block_size)

    got = run(runner, [make_sequence(i, p, t) for i, (p, t) in enumerate(zip(given, tables, strict=True))], 15, chunk)

    assert got == expected


def test_sampled_tokens_do_not_depend_on_chunks_or_company(model: LoadedModel) -> None:
    given = prompts(6, 40)
    settings = [
        SamplingParams(max_tokens=99, temperature=0.5 + i / 4, top_k=i * 3, top_p=1 - i / 20, seed=i) for i in range(6)
    ]
    tables, num_blocks = scattered([len(p) + 20 for p in given], 16)

    def sample(numbers: list[int], chunk: int, seed: int) -> list[list[int]]:
        sequences = [make_sequence(i, given[i], tables[i], settings[i]) for i in numbers]
        return run(Runner(model, num_blocks, 16), sequences, 20, chunk, seed)

    together = sample([0, 1, 2, 3, 4, 5], 50, 1)

    assert sample([0, 1, 2, 3, 4, 5], 7, 2) == together
    assert [sample([i], 64, 3)[0] for i in range(6)] == together


def test_copies_run_before_the_forward_pass(model: LoadedModel) -> None:
    """Two continuations of one prompt, the second over a copy of the half-filled block, as copy-on-write makes it."""
    prompt = prompts(1, 1)[0] * 5
    runner = Runner(model, 4, 8)
    first = make_sequence(0, prompt, [1])
    builder = StepBuilder(8, 8, 512)
    runner.execute(builder.build(ScheduledStep(0, [ScheduledTokens(first, 0, 4)])))
    second = make_sequence(1, [*prompt[:4], 77], [3])

    alone = Runner(model, 4, 8).execute(step_of([ScheduledTokens(make_sequence(2, second.tokens, [2]), 0, 5)])).tokens
    step = builder.build(
        ScheduledStep(1, [ScheduledTokens(first, 4, 1), ScheduledTokens(second, 4, 1)], copies=[(1, 3)])
    )
    tokens = runner.execute(step).tokens

    assert tokens[1:] == alone
    assert all(torch.equal(pool[1, :, :, :4], pool[3, :, :, :4]) for pool in runner.kv)
    assert not any(torch.equal(pool[1, :, :, 4], pool[3, :, :, 4]) for pool in runner.kv)


def test_a_step_of_unfinished_prompts_samples_nothing(model: LoadedModel) -> None:
    sequence = make_sequence(0, [1] * 20, [1, 2, 3])

    assert Runner(model, 3, 8).execute(step_of([ScheduledTokens(sequence, 0, 19)])).tokens == []


def test_the_null_block_stays_zero(model: LoadedModel) -> None:
    runner = Runner(model, 30, 8)
    tables, _ = scattered([30, 9, 50], 8)

    run(
        runner,
        [make_sequence(i, [i + 1] * n, t) for i, (n, t) in enumerate(zip((25, 4, 45), tables, strict=True))],
        5,
        9,
    )

    assert not any(pool[0].any() for pool in runner.kv)


@pytest.mark.parametrize(
    ("spans", "copies"),
    [
        ([(0, 5, [0])], []),
        ([(0, 5, [9])], []),
        ([(0, 9, [1])], []),
        ([(0, 0, [1])], []),
        ([(-1, 2, [1])], []),
        ([(0, 8, [1]), (0, 8, [1])], []),
        ([(8, 3, [2, 1]), (0, 8, [1])], []),
        ([], [(1, 0)]),
        ([], [(9, 1)]),
        ([], [(1, 3), (2, 3)]),
    ],
)
def test_a_step_that_would_touch_foreign_memory_is_refused_before_any_write(
    model: LoadedModel, spans: list[tuple[int, int, list[int]]], copies: list[tuple[int, int]]
) -> None:
    """Tables beside the pool or too short, tokens that are not there, blocks written twice, copies out of the pool."""
    runner = Runner(model, 8, 8)
    step = StepInput(
        number=0,
        rows=np.arange(len(spans), dtype=np.int32),
        starts=np.array([start for start, _, _ in spans], np.int32),
        counts=np.array([count for _, count, _ in spans], np.int32),
        token_ids=np.full(sum(count for _, count, _ in spans), 5, np.int32),
        patches=np.array(
            [(row, index, block) for row, (_, _, table) in enumerate(spans) for index, block in enumerate(table)],
            np.int32,
        ).reshape(-1, 3),
        copies=np.array(copies, np.int32).reshape(-1, 2),
    )

    with pytest.raises(InconsistentStep):
        runner.execute(step)

    assert not any(pool.any() for pool in runner.kv)


def test_a_step_with_other_tokens_than_it_counts_is_refused(model: LoadedModel) -> None:
    step = step_of([ScheduledTokens(make_sequence(0, [5] * 20, [1, 2, 3]), 0, 20)])

    with pytest.raises(InconsistentStep, match="19 tokens"):
        Runner(model, 8, 8).execute(dataclasses.replace(step, token_ids=step.token_ids[:-1]))


@pytest.mark.parametrize("token", [-1, 512])
def test_a_token_outside_the_vocabulary_is_refused(model: LoadedModel, token: int) -> None:
    with pytest.raises(InconsistentStep, match=r"0\.\.511"):
        Runner(model, 8, 8).execute(step_of([ScheduledTokens(make_sequence(0, [1, token], [1]), 0, 2)]))


def test_timing_a_swap_leaves_the_pool_as_it_was(model: LoadedModel) -> None:
    runner = Runner(model, num_blocks=6, block_size=8, host_slots=4)
    for number, pool in enumerate(runner.kv):
        pool.normal_(generator=torch.Generator().manual_seed(number))
    before = [pool.clone() for pool in runner.kv]
    blocks, seconds = runner.time_swap()
    assert blocks == 8, "four blocks out and back"
    assert seconds > 0
    assert all(torch.equal(*pair) for pair in zip(before, runner.kv, strict=True))
