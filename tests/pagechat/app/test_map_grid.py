"""Each place of the pool stands in one cell of the map, at every zoom and in any room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.geometry import Size

from pagechat.app.widgets.map_grid import DENSITY, LETTERS, LETTERS_AND_FILL, OVERVIEW, Grid, best_zoom

ROOMS = st.builds(Size, st.integers(0, 120), st.integers(0, 40))


@given(st.sampled_from([DENSITY, OVERVIEW, LETTERS, LETTERS_AND_FILL]), ROOMS, st.integers(1, 600))
def test_every_place_is_found_at_its_cell(zoom: int, room: Size, places: int) -> None:
    grid = Grid.fit(zoom, room, places)
    cells = range(grid.label_width, grid.label_width + grid.per_row * grid.cell_width)
    found = [(grid.place_at(x, y), y) for y in range(grid.lines) for x in cells]
    upper_rows = [
        place
        for place in range(1, places + 1)
        if place - grid.first_of_line(grid.line_of(place)) < grid.per_row * grid.group
    ]
    expected = [grid.first_of_cell(place) for place in upper_rows]
    assert {place for place, _ in found if place is not None} == set(expected)
    assert all(grid.place_at(x, grid.lines) is None for x in cells)
    assert all(place is None or grid.line_of(place) == y for place, y in found)


@given(ROOMS.filter(lambda room: room.width and room.height), st.integers(1, 200_000))
def test_at_the_density_zoom_the_whole_pool_is_seen(room: Size, places: int) -> None:
    grid = Grid.fit(DENSITY, room, places)
    assert grid.lines <= room.height
    assert grid.label_width + grid.per_row * grid.cell_width <= max(room.width, 1)


@pytest.mark.parametrize(
    ("places", "zoom", "without_colours"),
    [
        # 20 lines of 58 to 60 cells behind the labels: 24 blocks a line with their fill; 8 screens are 9,280 letters
        (400, LETTERS_AND_FILL, LETTERS_AND_FILL),
        (1_000, LETTERS, LETTERS),
        (10_000, OVERVIEW, LETTERS),
        (100_000, DENSITY, LETTERS),
    ],
)
def test_a_pool_begins_at_the_zoom_that_shows_enough_of_it(places: int, zoom: int, without_colours: int) -> None:
    room = Size(64, 20)
    assert (best_zoom(room, places, False), best_zoom(room, places, True)) == (zoom, without_colours)
