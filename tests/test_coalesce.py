"""Fetches bring every byte wanted, few others, and none twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from s4core.stores.coalesce import coalesce, cut_out

RANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 300)), min_size=1, max_size=30)
GAPS = st.integers(0, 200)
SIZES = st.integers(1, 500)
DATA = bytes(number * 7 % 251 for number in range(2300))


@given(RANGES, GAPS, SIZES)
def test_cut_out_gives_the_bytes_wanted(ranges: list[tuple[int, int]], gap: int, size: int) -> None:
    fetches = coalesce(ranges, gap, size)
    found = [DATA[offset : offset + length] for offset, length in fetches]
    for offset, length in ranges:
        assert cut_out((offset, length), fetches, found) == DATA[offset : offset + length]


@given(RANGES, GAPS, SIZES)
def test_fetches_are_sorted_disjoint_and_not_too_long(
    ranges: list[tuple[int, int]], gap: int, size: int
) -> None:
    fetches = coalesce(ranges, gap, size)
    assert all(1 <= length <= size for _, length in fetches)
    for (offset, length), (after, _) in pairwise(fetches):
        assert offset + length <= after


@given(RANGES, GAPS, SIZES)
def test_bytes_that_nobody_wants_lie_in_small_gaps(
    ranges: list[tuple[int, int]], gap: int, size: int
) -> None:
    wanted = {byte for offset, length in ranges for byte in range(offset, offset + length)}
    for offset, length in coalesce(ranges, gap, size):
        fetched = range(offset, offset + length)
        assert fetched[0] in wanted
        assert fetched[-1] in wanted
        unwanted_in_a_row = 0
        for byte in fetched:
            unwanted_in_a_row = 0 if byte in wanted else unwanted_in_a_row + 1
            assert unwanted_in_a_row <= gap


def test_near_ranges_share_a_fetch() -> None:
    assert coalesce([(0, 10), (15, 5)], max_gap_bytes=5, max_fetch_bytes=100) == [(0, 20)]
    assert coalesce([(0, 10), (16, 5)], max_gap_bytes=5, max_fetch_bytes=100) == [(0, 10), (16, 5)]


def test_a_long_range_is_cut() -> None:
    assert coalesce([(7, 25)], max_gap_bytes=0, max_fetch_bytes=10) == [(7, 10), (17, 10), (27, 5)]


def test_an_exact_fetch_is_given_without_a_copy() -> None:
    fetches, found = [(0, 10), (50, 10)], [DATA[:10], DATA[50:60]]
    assert cut_out((50, 10), fetches, found) is found[1]


def test_no_ranges_need_no_fetch() -> None:
    assert coalesce([]) == []
