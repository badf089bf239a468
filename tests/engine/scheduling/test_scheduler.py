"""Continuous batching, preemption and refusal, with an executor that checks every slot it reads."""

import random

import pytest

from engine.blocks import POLICIES, Policy
from engine.execution.step_input import StepInput, StepResult
from engine.protocol import BeamParams
from tests.engine.fakes import ContentExecutor, expected_answer, make_core, request, run, tokens_of


def test_decode_and_prefill_chunks_share_one_step() -> None:
    steps: list[StepInput] = []

    class Spy(ContentExecutor):
        def execute(self, step: StepInput) -> StepResult:
            steps.append(step)
            return super().execute(step)

    core = make_core(64, step_tokens=8, executor=Spy(64, 4))
    core.add(request("a", [1] * 3, max_tokens=6))
    core.step()
    core.add(request("b", list(range(20))))
    core.step()
    assert steps[1].counts.tolist() == [1, 7]
    assert steps[1].token_ids[1:].tolist() == list(range(7)), "the first ones of b"


def test_a_long_prompt_does_not_stop_the_others_from_decoding() -> None:
    core = make_core(64, step_tokens=8)
    core.add(request("long", list(range(40)) * 2))
    core.add(request("short", [3], max_tokens=4))
    core.step()  # the long prompt takes the whole first step
    answered = 0
    for _ in range(9):
        answered += sum(bool(output.tokens) for output in core.step()[0] if output.request_id == "short")
    assert answered == 0, "still waiting: admitted only when budget is left"
    outputs = run(core)
    assert tokens_of(outputs["short"]) == expected_answer([3], 4)


@pytest.mark.parametrize("num_blocks", [200, 14])
def test_many_requests_get_the_answers_an_endless_memory_would_give(num_blocks: int) -> None:
    core = make_core(num_blocks, step_tokens=16)
    prompts = {str(i): [i % 3] * 9 + list(range(i, i + 5 + i % 7)) for i in range(20)}
    prompts = {name: [token % 50 for token in prompt] for name, prompt in prompts.items()}
    for name, prompt in prompts.items():
        core.add(request(name, prompt, max_tokens=20))
    outputs = run(core)
    for name, prompt in prompts.items():
        assert tokens_of(outputs[name]) == expected_answer(prompt, 20)
        assert outputs[name][-1].finish_reason == "length"
    assert (core.scheduler.preemptions > 0) == (num_blocks == 14)
    assert core.blocks.pool.available == num_blocks
    core.blocks.check()


def test_a_stop_token_ends_a_request_and_is_reported() -> None:
    answer = expected_answer([5, 6], 50)
    core = make_core(64)
    core.add(request("a", [5, 6], max_tokens=50, stop=(answer[2],)))
    outputs = run(core)["a"]
    assert tokens_of(outputs) == answer[: answer.index(answer[2]) + 1]
    assert outputs[-1].finish_reason == "stop"


def test_a_full_context_ends_a_request() -> None:
    core = make_core(4, block_size=4)  # the pool's 16 slots are less than the model's own limit
    core.add(request("a", [1] * 10, max_tokens=100))
    outputs = run(core)["a"]
    assert len(tokens_of(outputs)) == 6
    assert outputs[-1].finish_reason == "length"


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers_and_harms_nobody() -> None:
    core = make_core(4, block_size=4)
    core.add(request("big", [1] * 16))
    core.add(request("small", [2] * 4, max_tokens=3))
    outputs = run(core)
    assert outputs["big"][0].finish_reason == "error"
    assert outputs["big"][0].code == "too_long"
    for number in ("16 tokens", "4 blocks of 4 = 16 slots"):
        assert number in outputs["big"][0].message
    assert tokens_of(outputs["small"]) == expected_answer([2] * 4, 3)


@pytest.mark.parametrize("prompt", [[], [50], [-1]])
def test_an_impossible_prompt_is_refused(prompt: list[int]) -> None:
    core = make_core(4)
    core.add(request("a", prompt))
    (output,) = run(core)["a"]
    assert (output.finish_reason, output.code) == ("error", "bad_request")


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_gives_its_blocks_back_at_once(steps: int) -> None:
    core = make_core(16, step_tokens=4)
    core.add(request("a", list(range(10)), max_tokens=30))
    for _ in range(steps):
        core.step()
    output = core.abort("a")
    assert output is not None
    assert output.finish_reason == "abort"
    assert core.blocks.pool.available == 16
    assert not core.has_work
    assert core.abort("a") is None, "a second abort finds nothing"


def test_cached_tokens_are_those_of_the_first_admission_also_after_preemption() -> None:
    core = make_core(12, block_size=4)
    shared = [9] * 8
    core.add(request("first", [*shared, 1], max_tokens=4))
    run(core)
    core.add(request("old", [*shared, 2], max_tokens=30))
    core.add(request("new", [*shared, 3], max_tokens=30))
    outputs = run(core)
    assert core.scheduler.preemptions > 0, "the case the test is about"
    assert {output.cached_tokens for output in [*outputs["old"], *outputs["new"]]} == {8}


def test_identical_prompts_of_one_step_share_their_blocks() -> None:
    core = make_core(16, block_size=4, step_tokens=64)
    for name in "abc":
        core.add(request(name, list(range(13))))
    core.step()
    assert core.blocks.pool.num_blocks - core.blocks.pool.available == 3 + 3, "three shared, one own tail each"


def test_without_prefix_cache_nothing_is_shared() -> None:
    core = make_core(16, block_size=4, step_tokens=64, prefix_cache=False)
    for name in "ab":
        core.add(request(name, list(range(13))))
    core.step()
    assert core.blocks.pool.num_blocks - core.blocks.pool.available == 8
    run(core)
    assert core.blocks.pool.cached == 0


def test_a_workload_of_twice_the_pool_makes_steady_progress() -> None:
    core = make_core(20, block_size=4, step_tokens=32, prefix_cache=False)
    for i in range(8):
        core.add(request(str(i), [i] * 10, max_tokens=10))  # 8 x 5 blocks
    run(core)
    needed = 8 * (10 + 9)
    assert core.executor.computed <= 2 * needed, "recomputation stays below the work itself"


@pytest.mark.parametrize("policy", POLICIES)
def test_decoding_in_place_is_what_growing_one_by_one_would_be(policy: Policy) -> None:
    def history(seed: int, *, in_place: bool) -> tuple[list[object], int]:
        """What each step gave, took and said, and the preemptions. The order within a step may differ, and with it
        which blocks are taken later."""
        choose = random.Random(seed)
        core = make_core(choose.randint(12, 40), step_tokens=12, max_running=8, prefix_cache=False, policy=policy)
        if not in_place:
            core.blocks.decode_in_place = lambda running: ({}, running)  # type: ignore[method-assign]
        for name in range(10):
            beam = BeamParams(width=3) if policy == "paged" and name % 5 == 4 else None
            prompt = [name] * choose.randint(1, 20)
            core.add(request(str(name), prompt, choose.randint(1, 16), n=choose.choice([1, 1, 3]), beam=beam))
        steps: list[object] = []
        while core.has_work:
            outputs, report = core.step()
            said = sorted((output.request_id, output.index, output.tokens) for output in outputs)
            events = sorted((event.kind, event.seq, event.index) for event in report.events) if report else []
            steps.append((said, events, dict(report.lengths) if report else {}))
        return steps, core.scheduler.preemptions

    preemptions = 0
    for seed in range(12):
        quick, slow = history(seed, in_place=True), history(seed, in_place=False)
        assert quick == slow
        preemptions += quick[1]
    assert (preemptions > 0) == (policy == "paged"), "the cases in which the plan is changed again"
