"""Several answers to one prompt and beam search: what is shared, what is copied, what comes out."""

import pytest

from engine.protocol import BeamParams, PoolEvent, TokenOutput
from tests.engine.fakes import expected_answer, expected_beams, make_core, request, run, tokens_of


def used(core) -> int:
    return core.blocks.pool.num_blocks - core.blocks.pool.available


def test_four_answers_to_a_thousand_tokens_take_the_prompts_blocks_once() -> None:
    core = make_core(200, block_size=16, step_tokens=2048)
    prompt = [i % 50 for i in range(1000)]  # 62 full blocks and one of 8 tokens
    core.add(request("a", prompt, max_tokens=4, n=4))
    core.step()
    assert used(core) == 63
    core.step()
    assert used(core) == 63 + 3, "three writers copied the half-filled block, the last one writes in place"


def test_answers_differ_by_their_seeds_and_equal_those_of_single_requests() -> None:
    core = make_core(64)
    core.add(request("a", [1, 2, 3], max_tokens=6, n=3))
    outputs = run(core)["a"]
    for index in range(3):
        assert tokens_of(outputs, index) == expected_answer([1, 2, 3], 6, seed=index)


def test_copies_of_a_step_are_made_together() -> None:
    core = make_core(64)
    core.add(request("a", [1, 2], max_tokens=4, n=4))
    core.step()
    _, report = core.step()
    assert report is not None
    copies = [event for event in report.events if event.kind == "copy"]
    assert len(copies) == 3
    assert len({event.source for event in copies}) == 1


def test_an_abort_ends_all_answers_and_frees_their_blocks() -> None:
    core = make_core(64)
    core.add(request("a", [1, 2, 3], max_tokens=50, n=4))
    for _ in range(3):
        core.step()
    assert core.abort("a") is not None
    assert used(core) == 0
    assert not core.has_work


def test_answers_end_at_different_times() -> None:
    first, second = (expected_answer([1], 9, seed=seed) for seed in (0, 1))
    core = make_core(64)
    core.add(request("a", [1], max_tokens=9, stop=(first[1],), n=2))
    outputs = run(core)["a"]
    assert tokens_of(outputs, 0) == first[:2]
    assert tokens_of(outputs, 1) == expected_answer([1], 9, stop=(first[1],), seed=1)
    assert {output.finish_reason for output in outputs if output.index == 0} == {None, "stop"}
    assert second != first


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 1.7])
@pytest.mark.parametrize("num_blocks", [200, 20])
def test_beams_are_those_of_the_search_without_memory_limits(
    early_stopping: bool | str, length_penalty: float, num_blocks: int
) -> None:
    beam = BeamParams(width=4, early_stopping=early_stopping, length_penalty=length_penalty)
    core = make_core(num_blocks, block_size=2)
    prompt = [1, 2, 3, 4, 5]
    core.add(request("other", [9] * 5, max_tokens=30))  # the older one: the beams give way to it
    core.add(request("a", prompt, max_tokens=8, stop=(3,), beam=beam, n=4))
    outputs = run(core)
    expected = expected_beams(prompt, 8, beam, (3,))
    assert [tokens_of(outputs["a"], index) for index in range(4)] == expected
    assert tokens_of(outputs["other"]) == expected_answer([9] * 5, 30)
    scores = [output.score for output in outputs["a"]]
    assert scores == sorted(scores, key=lambda score: -score)
    assert (core.scheduler.preemptions > 0) == (num_blocks == 20)
    assert used(core) == 0
    core.blocks.check()


def test_beams_share_what_they_have_in_common() -> None:
    core = make_core(200, block_size=4)
    core.add(request("a", [7] * 40, max_tokens=6, beam=BeamParams(width=4), n=1))
    events: list[PoolEvent] = []
    peak = 0
    while core.has_work:
        _, report = core.step()
        events += report.events if report else []
        peak = max(peak, used(core))
    assert peak <= 10 + 4 * 2, "the prompt's ten blocks once, and each beam's own"
    assert any(event.kind == "share" for event in events)


def test_more_answers_than_may_run_are_refused() -> None:
    core = make_core(64, max_running=2)
    core.add(request("a", [1], n=3))
    (output,) = run(core)["a"]
    assert output.code == "bad_request"
    assert "3 answers" in output.message


# -- one answer of several is aborted --------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("steps", range(6))
def test_an_answer_that_nobody_wants_gives_its_blocks_back_and_the_others_go_on(
    ahead: bool, index: int, steps: int
) -> None:
    prompt = list(range(10))
    core = make_core(64, ahead=ahead, step_tokens=4)  # the prompt takes three steps
    core.add(request("a", prompt, max_tokens=30, n=3))
    outputs: list[TokenOutput] = []
    for _ in range(steps):
        outputs += core.step()[0]
    aborted = core.abort("a", index)
    outputs += [aborted] if aborted else []
    for _ in range(4):
        outputs += core.step()[0]
    assert [output.index for output in outputs if output.finish_reason] == [index]
    assert len({block for one in core.scheduler.running for block in one.table}) <= used(core) + 1
    assert len(core.scheduler.running) <= 2
    told = len(tokens_of(outputs, index))
    outputs += run(core)["a"]

    assert len(tokens_of(outputs, index)) == told, "nothing came after its end"
    assert told <= max(1, steps)
    for other in {0, 1, 2} - {index}:
        assert tokens_of(outputs, other) == expected_answer(prompt, 30, seed=other)
    assert sorted((o.index, o.finish_reason) for o in outputs if o.finish_reason) == sorted(
        [(index, "abort"), *((other, "length") for other in {0, 1, 2} - {index})]
    )
    assert used(core) == 0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_answers_aborted_one_by_one_end_the_request(ahead: bool, order: tuple[int, ...], steps: int) -> None:
    core = make_core(64, ahead=ahead, step_tokens=4)
    core.add(request("a", list(range(10)), max_tokens=30, n=3))
    outputs: list[TokenOutput] = []
    for _ in range(steps):
        outputs += core.step()[0]
    outputs += [output for index in order if (output := core.abort("a", index))]
    assert core.abort("a", 7) is None
    assert not core.scheduler.running
    assert not core.scheduler.waiting
    outputs += run(core).get("a", [])
    assert sorted((o.index, o.finish_reason) for o in outputs if o.finish_reason) == [(n, "abort") for n in range(3)]
    assert used(core) == 0
    core.blocks.check()


def test_the_first_answer_stays_for_the_next_turn_also_when_it_was_aborted() -> None:
    core = make_core(64)
    core.add(request("a", [1, 2, 3], max_tokens=30, n=2, keep=True))
    for _ in range(4):
        core.step()
    assert core.abort("a", 0) is not None
    run(core)
    session = core.sessions.get("chat-a")
    assert session is not None
    assert session.resident is not None
    assert session.resident.index == 0
    assert session.resident.tokens == [1, 2, 3, *expected_answer([1, 2, 3], 4)]


def test_contiguous_answers_can_be_aborted_one_by_one_too() -> None:
    core = make_core(64, policy="contiguous-max", max_context=64)
    core.add(request("a", [1, 2, 3], max_tokens=9, n=2))
    core.step()
    assert core.abort("a", 0) is not None
    assert tokens_of(run(core)["a"], 1) == expected_answer([1, 2, 3], 9, seed=1)[1:]


def test_a_beam_search_has_no_answers_to_abort() -> None:
    core = make_core(64)
    core.add(request("a", [1, 2, 3], max_tokens=6, n=2, beam=BeamParams(width=2)))
    core.step()
    assert core.abort("a", 0) is None
    assert len(run(core)["a"]) == 2
