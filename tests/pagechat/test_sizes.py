"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagechat.sizes import UNITS, SizeError, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("2GB", 2_000_000_000),
        ("1.5 GiB", 1_610_612_736),
        ("64kib", 65_536),
        ("4096", 4096),
        (" 7 B ", 7),
        ("0.1KiB", 102),  # 102.4, rounded down
    ],
)
def test_a_size_with_or_without_a_unit_is_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "80 apples", "1e9", "80G", "1,5GB", "٣GiB", "9" * 400, "nan", "inf"]
)
def test_what_is_no_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SizeError) as refused:
        parse_size(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_bare_g_is_refused_with_the_units_that_are_known() -> None:
    with pytest.raises(SizeError, match=r"GB.*GiB"):
        parse_size("80G")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (26 * 1024**3, "26 GiB"),
        (819_200, "0.78 MiB"),
        (576, "0.56 KiB"),
        (500, "500 B"),
        (0, "0 B"),
        (54 * 1024**3 + 1024**3 // 2, "54.5 GiB"),
    ],
)
def test_bytes_read_in_the_largest_unit_that_fits(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**50), st.sampled_from(sorted(UNITS)))
def test_a_whole_number_of_any_unit_is_exact(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * UNITS[unit]
