"""What the map is told to show, against the mirror it is made from."""

from __future__ import annotations

import pytest

from engine.blocks.observe.mirror import MirrorGap, PoolMirror
from engine.protocol import PoolEvent, SequenceSnapshot, Snapshot, StepReport
from pagechat.app.cells import Cell
from pagechat.app.letters import LETTERS, NO_LETTER, Letters
from pagechat.app.panels.figures import compare, table_line
from pagechat.app.pool_view import FLASH_S, PoolView


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def snapshot(*tables: tuple[int, str, list[int], int], cached: list[int] | None = None) -> Snapshot:
    """A pool of 32 blocks of 16: tables are (sequence, session, blocks, tokens)."""
    return Snapshot(
        ticket=1, next_event=10, step=3, num_blocks=32, block_size=16, cached=cached or [], addressable=[],
        sequences=[
            SequenceSnapshot(seq=s, session=name, blocks=b, length=n) for s, name, b, n in tables
        ],
        running=len(tables), waiting=0, preemptions=0,
    )  # fmt: skip


def report(
    *events: PoolEvent, step: int = 4, first: int = 10, tokens: int = 0, lengths: list | None = None
) -> StepReport:
    return StepReport(
        step=step, time=0, duration_s=0.1, running=1, waiting=0, preemptions=0, prompt_tokens=0, cached_tokens=0,
        generated_tokens=tokens, first_event=10, events=list(events), lengths=lengths or [],
    )  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> PoolView:
    letters = Letters()
    letters.open_tab("essay")
    view = PoolView(letters, clock)
    view.reset(snapshot((1, "essay", [1, 2], 20), (2, "other", [1, 3], 32), cached=[9]))
    view.take_dirty()
    return view


def test_a_block_shows_its_state_and_its_owner(view: PoolView) -> None:
    assert view.cell(1) == Cell("shared", "A", 8)
    assert view.cell(2) == Cell("filling", "A", 2)  # 4 of 16 tokens
    assert view.cell(3) == Cell("active", "B", 8)
    assert view.cell(9) == Cell("cached", "", 8)
    assert view.cell(4) == Cell("free")


def test_a_nearly_empty_block_is_not_shown_empty_nor_a_nearly_full_one_full(view: PoolView) -> None:
    view.reset(snapshot((1, "essay", [1, 2], 17), (2, "b", [3], 15)))
    assert (view.cell(2).fill, view.cell(3).fill) == (1, 7)


def test_only_blocks_that_changed_are_dirty(view: PoolView, clock: Clock) -> None:
    view.apply(report(PoolEvent("allocate", 7, 1, "essay", 2), lengths=[(1, 33)]))
    assert view.take_dirty() == {2, 7}
    assert view.take_dirty() == set()


def test_an_allocated_block_flashes_and_the_end_of_it_is_a_change(view: PoolView, clock: Clock) -> None:
    view.apply(report(PoolEvent("allocate", 7, 1, "essay", 2), lengths=[(1, 33)]))
    view.take_dirty()
    assert view.cell(7).flash == "allocate"
    clock.now += FLASH_S
    assert view.take_dirty() == {7}
    assert view.cell(7).flash is None


def test_a_released_block_with_content_remembers_who_had_it(view: PoolView) -> None:
    view.apply(report(PoolEvent("cache", 3), PoolEvent("release", 3, 2, "other", 1)))
    assert view.cell(3) == Cell("cached", "B", 8)
    assert view.last_owner(3) == "other"


def test_a_gap_is_not_papered_over(view: PoolView) -> None:
    with pytest.raises(MirrorGap):
        view.apply(report(step=9))


def test_the_rate_counts_the_last_seconds_only(view: PoolView, clock: Clock) -> None:
    for number in range(5):
        view.apply(report(step=4 + number, tokens=10))
        clock.now += 1
    assert view.tokens_per_s() == pytest.approx(10)
    clock.now += 60
    assert view.tokens_per_s() == 0


def test_without_an_engine_there_is_nothing(view: PoolView) -> None:
    view.reset(None)
    assert view.take_dirty() is None
    assert (view.num_blocks, view.totals(), view.sessions()) == (0, None, {})


def test_tabs_keep_their_letter_and_others_get_the_next_one() -> None:
    letters = Letters()
    assert [letters.open_tab("one"), letters.get("foreign"), letters.open_tab("two")] == ["A", "B", "C"]
    assert letters.get("one") == "A"


def test_letters_of_the_gone_are_used_again() -> None:
    letters = Letters()
    letters.open_tab("tab")
    for number in range(len(LETTERS) - 1):
        letters.get(f"s{number}")
    assert letters.get("one too many") == NO_LETTER
    assert letters.scarce
    letters.forget_unused(["s0"])
    assert not letters.scarce
    assert letters.get("one too many") == "C"
    assert (letters.get("tab"), letters.get("s0")) == ("A", "B")


def test_contiguous_reservation_is_counted_as_the_paper_does() -> None:
    # 32 blocks of 16; reserving 128 tokens takes 8 blocks, so 4 requests fit.
    # Held now: sequences of 2 + 2 blocks, one shared: 3 physical blocks for 2 sequences; 32 * 2 / 3 = 21.
    found = compare(PoolMirror.from_snapshot(snapshot((1, "a", [1, 2], 20), (2, "b", [1, 3], 32))), 128)
    assert (found.contiguous, found.sequences, found.blocks_held, found.paged) == (4, 2, 3, 21)


def test_a_context_longer_than_the_pool_reserves_the_pool() -> None:
    found = compare(PoolMirror.from_snapshot(snapshot()), 10**6)
    assert (found.reserved_tokens, found.contiguous, found.paged) == (512, 1, None)


def test_a_table_that_is_too_wide_loses_its_middle() -> None:
    mirror = PoolMirror.from_snapshot(snapshot((1, "a", list(range(1, 11)), 153)))
    assert table_line(mirror, "a", 200) == "0:01 1:02 2:03 3:04 4:05 5:06 6:07 7:08 8:09 9:10 (9/16)"
    assert table_line(mirror, "a", 36) == "0:01 1:02 2:03 … 8:09 9:10 (9/16)"
    assert table_line(mirror, "nobody", 36) is None
