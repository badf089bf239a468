"""Swap or recompute: the choice, and the tokens that come out."""

from engine.scheduling.preemption import PreemptionCosts
from tests.engine.fakes import expected_answer, make_core, request, run, tokens_of


def squeezed_core(*, swap_is_cheap: bool):
    core = make_core(10, block_size=4, step_tokens=32, host_slots=40, prefix_cache=False)
    core.costs.token_s, core.costs.block_s = (1.0, 1e-9) if swap_is_cheap else (1e-9, 1.0)
    core._learn_costs = lambda *_: None  # the measured costs stay as set
    for name in range(4):
        core.add(request(str(name), [name] * 9, max_tokens=20))
    return core


def test_a_swapped_sequence_continues_with_the_tokens_it_would_have_had() -> None:
    core = squeezed_core(swap_is_cheap=True)
    preempted = []
    outputs = run(core, watch=lambda report: preempted.extend(report.preempted))
    for name in range(4):
        assert tokens_of(outputs[str(name)]) == expected_answer([name] * 9, 20)
    assert len(preempted) == core.scheduler.preemptions > 0
    assert {(p.method, p.reason) for p in preempted} == {("swap", "cheaper")}
    assert all(p.swap_s < p.recompute_s for p in preempted)
    assert core.executor.moved > 0
    assert core.executor.computed == 4 * (9 + 19), "nothing is computed twice"
    assert core.blocks.host_used == 0


def test_recompute_is_taken_when_it_is_cheaper() -> None:
    core = squeezed_core(swap_is_cheap=False)
    outputs = run(core)
    assert core.scheduler.preemptions > 0
    assert core.executor.moved == 0
    for name in range(4):
        assert tokens_of(outputs[str(name)]) == expected_answer([name] * 9, 20)


def test_without_host_memory_the_reason_says_so() -> None:
    core = make_core(10, block_size=4, step_tokens=32, prefix_cache=False)
    for name in range(4):
        core.add(request(str(name), [name] * 9, max_tokens=20))
    preempted = []
    run(core, watch=lambda report: preempted.extend(report.preempted))
    assert {(p.method, p.reason) for p in preempted} == {("recompute", "no host memory")}


def test_a_swapped_request_that_is_aborted_gives_its_host_slots_back() -> None:
    core = squeezed_core(swap_is_cheap=True)
    while not core.blocks.host_used:
        core.step()
    swapped = next(sequence for sequence in core.scheduler.waiting if sequence.swapped)
    core.abort(swapped.request_id)
    run(core)
    assert core.blocks.host_used == 0


def test_the_choice_compares_measured_seconds_and_explains_itself() -> None:
    costs = PreemptionCosts()
    assert not costs.choose(100, 7).swap, "without measurements nothing is swapped"
    costs.saw_tokens(1000, 1.0)
    costs.saw_blocks(10, 0.01)
    choice = costs.choose(100, 7)
    assert choice.swap
    assert (round(choice.recompute_s, 6), round(choice.swap_s, 6)) == (0.1, 0.014)
    assert not costs.choose(10, 7).swap
