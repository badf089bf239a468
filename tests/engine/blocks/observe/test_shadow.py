"""What other policies would hold of the live requests: against arithmetic by hand and a memory of single slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks.contiguous import RESERVATIONS, Reservation, reserved_tokens
from engine.blocks.observe.mirror import PoolMirror
from engine.blocks.observe.shadow import Shadows
from engine.protocol import SamplingParams, ShadowStatus, decode_report, encode
from engine.requests.sequence import Sequence
from tests.engine.fakes import make_core, request, run


def holding(request_id: str, tokens: int, index: int = 0) -> Sequence:
    """A running sequence with this many tokens in its blocks."""
    sampling = SamplingParams(max_tokens=1, seed=0)
    return Sequence(1, request_id, "", [0] * (tokens + 1), tokens, sampling, index=index, computed=tokens)


def by_policy(statuses: list[ShadowStatus]) -> dict[str, tuple[int, int, int, int, int]]:
    """(held, used, reserved, internal, external) of each policy."""
    return {
        s.policy: (s.requests_held, s.slots_used, s.reserved_waste, s.internal_waste, s.external_waste)
        for s in statuses
    }


def test_each_policy_tells_what_it_would_hold_and_waste() -> None:
    # given 256 slots, a context of 128, and a request of 40 + 20 tokens that holds 50
    shadows = Shadows(num_blocks=16, block_size=16, max_context=128)
    shadows.arrive("a", prompt=40, max_tokens=20)
    # then max reserves 128, pow2 40 + 32, oracle 60; paged has 4 blocks of 16
    assert by_policy(shadows.status([holding("a", 50)])) == {
        "paged": (1, 50, 0, 14, 0),
        "contiguous-max": (1, 50, 10, 68, 0),
        "contiguous-pow2": (1, 50, 10, 12, 0),
        "contiguous-oracle": (1, 50, 10, 0, 0),
    }


def test_free_slots_are_external_waste_while_a_request_fits_in_no_hole() -> None:
    # given 256 slots, three reservations of 80 and a hole of 16 behind them; then the middle one goes
    shadows = Shadows(num_blocks=16, block_size=16, max_context=256)
    for name in "abc":
        shadows.arrive(name, prompt=60, max_tokens=20)
    shadows.finish("b")
    assert by_policy(shadows.status([]))["contiguous-oracle"] == (2, 0, 160, 0, 0)
    # when a request for 90 comes: 96 slots are free, in holes of 80 and 16
    shadows.arrive("d", prompt=60, max_tokens=30)
    assert by_policy(shadows.status([]))["contiguous-oracle"] == (2, 0, 160, 0, 96)
    # and on demand it would fit
    assert by_policy(shadows.status([]))["paged"][0] == 3
    # when its neighbour goes, the holes join
    shadows.finish("c")
    assert by_policy(shadows.status([]))["contiguous-oracle"] == (2, 0, 170, 0, 0)


def test_regions_tell_what_is_kept_for_whom() -> None:
    # given 256 slots, a context of 128, and two requests, of 40 + 20 tokens and of 10 + 6
    shadows = Shadows(num_blocks=16, block_size=16, max_context=128)
    shadows.arrive("a", 40, 20, session="essay")
    shadows.arrive("b", 10, 6, session="poem")
    regions = {
        s.policy: [(r.first, r.length, r.tokens, r.longest, r.session) for r in s.regions]
        for s in shadows.status([holding("a", 50)])
    }
    # then each has what its policy reserves, first fit: max 128, pow2 40 + 32 and 10 + 8, oracle what comes
    assert regions == {
        "paged": [],
        "contiguous-max": [(0, 128, 50, 60, "essay"), (128, 128, 0, 16, "poem")],
        "contiguous-pow2": [(0, 72, 50, 60, "essay"), (72, 18, 0, 16, "poem")],
        "contiguous-oracle": [(0, 60, 50, 60, "essay"), (60, 16, 0, 16, "poem")],
    }


def test_requests_are_held_first_come_first_served() -> None:
    # given room for one reservation of the whole context, and a small request behind a large one
    shadows = Shadows(num_blocks=8, block_size=16, max_context=128)
    shadows.arrive("first", 8, 8)
    shadows.arrive("second", 100, 28)
    shadows.arrive("small", 1, 1)
    statuses = by_policy(shadows.status([]))
    # then nobody overtakes
    assert statuses["contiguous-max"][0] == statuses["contiguous-oracle"][0] == 1
    shadows.finish("first")
    # second takes all 128 slots
    assert by_policy(shadows.status([]))["contiguous-oracle"] == (1, 0, 128, 0, 0)


def test_each_of_several_answers_has_a_reservation_of_its_own() -> None:
    shadows = Shadows(num_blocks=16, block_size=16, max_context=256)
    shadows.arrive("a", prompt=30, max_tokens=10, answers=4)
    running = [holding("a", 35, index) for index in range(4)]
    assert by_policy(shadows.status(running))["contiguous-oracle"] == (4, 140, 20, 0, 0)
    shadows.finish("a")
    assert by_policy(shadows.status([]))["contiguous-oracle"] == (0, 0, 0, 0, 0)


@given(
    policy=st.sampled_from(RESERVATIONS),
    num_slots=st.integers(1, 60),
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=30),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_a_shadow_is_first_fit_over_single_slots(
    policy: Reservation, num_slots: int, requests: list[tuple[int, int]], data: st.DataObject
) -> None:
    # given a memory of single slots, in which each reservation is written down
    max_context = max(1, num_slots - 3)
    shadows = Shadows(num_slots, 1, max_context)
    (shadow,) = [s for s in shadows._contiguous if s.policy == policy]
    slots: list[str] = [""] * num_slots
    waiting: dict[str, int] = {}

    def admit() -> None:
        while waiting:
            name, needed = next(iter(waiting.items()))
            for first in range(num_slots - needed + 1):
                if not any(slots[first : first + needed]):
                    slots[first : first + needed] = [name] * needed
                    del waiting[name]
                    break
            else:
                return

    # when requests come and go in any order
    live: list[str] = []
    for number, (prompt, output) in enumerate(requests):
        shadows.arrive(str(number), prompt, output)
        waiting[str(number)] = reserved_tokens(policy, prompt, output, max_context)
        live.append(str(number))
        admit()
        while live and data.draw(st.booleans()):
            name = live.pop(data.draw(st.integers(0, len(live) - 1)))
            shadows.finish(name)
            waiting.pop(name, None)
            slots = ["" if slot == name else slot for slot in slots]
            admit()
        # then both hold the same, and waste the same
        shadow.check()
        status = shadow.status({})
        assert status.requests_held == len(set(slots) - {""})
        assert status.slots_used + status.reserved_waste + status.internal_waste == sum(map(bool, slots))
        assert status.external_waste == (slots.count("") if waiting else 0)


def test_paged_beside_a_paged_engine_without_sharing_wastes_what_the_engine_does() -> None:
    core = make_core(64, block_size=4, prefix_cache=False)
    mirror = PoolMirror.from_snapshot(core.snapshot(0))
    for number in range(5):
        core.add(request(str(number), [number] * (3 + 5 * number), 30))
    for _ in range(12):
        _, report = core.step()
        assert report is not None
        mirror.apply(report)
    status = mirror.status()
    held, used, _, internal, _ = by_policy(core.accounting.shadows.status(core.scheduler.running))["paged"]
    assert (held, used, internal) == (5, status.slots_used, status.internal_waste)


@pytest.mark.parametrize("answers", [{"n": 3}, {"n": 2, "beam": {"width": 4}}])
def test_whatever_ends_a_request_ends_it_in_the_shadows(answers: dict[str, object]) -> None:
    core = make_core(8, block_size=4)
    options: dict[str, object] = dict(answers)
    if "beam" in options:
        from engine.protocol import BeamParams

        options["beam"] = BeamParams(width=4)
    for number in range(4):
        core.add(request(str(number), [number] * 6, 4, **options))
    core.add(request("too long", [1] * 200, 4))
    core.add(request("aborted", [1] * 5, 4, **options))
    core.step()
    core.abort("aborted")
    run(core)
    statuses = by_policy(core.accounting.shadows.status(core.scheduler.running))
    assert set(statuses.values()) == {(0, 0, 0, 0, 0)}


def test_reports_carry_the_shadows_about_twice_a_second() -> None:
    # given a clock of a tenth of a second a step
    now = [0.0]
    core = make_core(64, block_size=4, clock=lambda: now[0])
    core.add(request("a", [1, 2, 3], 20))
    carried = []
    for _ in range(15):
        _, report = core.step()
        assert report is not None
        carried.append(bool(decode_report(encode(report)).shadows))
        now[0] += 0.1
    assert carried.count(True) == 3
    assert carried[0]
