"""Contiguous reservation: what the three policies reserve, and that they run for real."""

import pytest

from engine.blocks import POLICIES
from engine.blocks.contiguous import reserved_tokens
from tests.engine.fakes import expected_answer, make_core, request, run, tokens_of


def test_reservations_are_those_of_the_paper() -> None:
    # PagedAttention, section 6.1: a true output of 25 tokens reserves 32 slots under Pow2.
    assert reserved_tokens("contiguous-max", 100, 25, 2048) == 2048
    assert reserved_tokens("contiguous-pow2", 100, 25, 2048) == 132
    assert reserved_tokens("contiguous-pow2", 100, 32, 2048) == 132
    assert reserved_tokens("contiguous-oracle", 100, 25, 2048) == 125


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_answers(policy: str) -> None:
    core = make_core(24, block_size=4, policy=policy, max_context=32)
    for name in range(10):
        core.add(request(str(name), [name % 3] * (3 + name), max_tokens=3 + name % 5, n=1 + name % 2))
    outputs = run(core)
    for name in range(10):
        for index in range(1 + name % 2):
            answer = expected_answer([name % 3] * (3 + name), 3 + name % 5, seed=index)
            assert tokens_of(outputs[str(name)], index) == answer
    assert core.blocks.pool.available == 24
    core.blocks.check()


@pytest.mark.parametrize(("policy", "held"), [("contiguous-max", 2), ("contiguous-oracle", 4), ("paged", 8)])
def test_a_reservation_limits_how_many_requests_run(policy: str, held: int) -> None:
    core = make_core(16, block_size=4, policy=policy, max_context=32, prefix_cache=False)
    for name in range(8):
        core.add(request(str(name), [name] * 3, max_tokens=13))  # 16 slots in the end, 4 now
    core.step()
    assert len(core.scheduler.running) == held
    core.blocks.check()


def test_a_hole_is_used_again_when_its_neighbours_are_free() -> None:
    core = make_core(8, block_size=4, policy="contiguous-oracle", max_context=32)
    for name, tokens in (("a", 2), ("b", 20), ("c", 2)):
        core.add(request(name, [1] * 2, max_tokens=tokens - 1))
    while len(core.scheduler.running) != 1:
        core.step()
    assert [sequence.request_id for sequence in core.scheduler.running] == ["b"]
    core.add(request("d", [1] * 2, max_tokens=18))
    core.step()
    assert len(core.scheduler.running) == 1, "two free blocks, but not side by side"
    assert tokens_of(run(core)["d"]) == expected_answer([1] * 2, 18)


def test_beam_search_needs_paging() -> None:
    from engine.protocol import BeamParams

    core = make_core(8, policy="contiguous-max", max_context=16)
    core.add(request("a", [1], beam=BeamParams(width=2)))
    (output,) = run(core)["a"]
    assert "paged" in output.message
