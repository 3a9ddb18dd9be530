# SPDX-License-Identifier: Apache-2.0
"""Units of small address spaces: examples computed by hand, and random examples that are compared
with Python's sets of page numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.arrays import Table
from sentineld.model.records import PAGE_RUN_DTYPE
from sentineld.policies.temperature.units import (
    UNIT_PAGES_MIN,
    UNITS_MAX,
    Units,
    no_units,
    unit_pages,
)


def runs(*rows: tuple[int, int, bool]) -> Table:
    return np.array(list(rows), PAGE_RUN_DTYPE)


SPACE = runs((2, 4, True), (6, 3, False), (20, 2, True))
"""With units of four pages: unit 0 has pages 2 and 3, unit 1 has 4 to 7, unit 2 has 8, unit 5 has
20 and 21."""


def test_runs_are_cut_at_the_borders_of_units() -> None:
    units = Units(SPACE, 4)
    assert units.numbers.tolist() == [0, 1, 2, 5]
    assert units.resident.tolist() == [2, 2, 0, 2]
    assert units.swapped.tolist() == [0, 2, 1, 0]


def test_ranges_follow_the_order_of_the_units_and_are_cut() -> None:
    units = Units(SPACE, 4)
    found = units.ranges(np.array([3, 1, 0]), True, 5)
    assert found.tolist() == [(20, 2, True), (4, 2, True), (2, 1, True)]
    assert units.ranges(np.array([2, 1]), False, 9).tolist() == [(8, 1, False), (6, 2, False)]
    assert len(units.ranges(np.array([0]), True, 0)) == 0


def test_the_contents_of_units_can_be_replaced() -> None:
    units = Units(SPACE, 4).replaced(np.array([1, 5]), runs((4, 1, False), (5, 1, True)))
    assert units.numbers.tolist() == [0, 1, 2]
    assert units.resident.tolist() == [2, 1, 0]
    assert units.swapped.tolist() == [0, 1, 1]


def test_units_continue_earlier_ones() -> None:
    before = Units(SPACE, 4)
    now = Units(runs((4, 1, True), (12, 1, True), (20, 4, True)), 4)
    assert now.origin(before).tolist() == [1, -1, 3]
    assert now.origin(no_units()).tolist() == [-1, -1, -1]
    assert len(no_units().origin(before)) == 0


def test_larger_units_continue_the_first_unit_that_they_contain() -> None:
    now = Units(SPACE, 8)
    assert now.numbers.tolist() == [0, 1, 2]
    assert now.origin(Units(SPACE, 4)).tolist() == [0, 2, 3]
    assert Units(SPACE, 4).origin(now).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("pages", "size"),
    [
        (0, UNIT_PAGES_MIN),
        (UNIT_PAGES_MIN * UNITS_MAX, UNIT_PAGES_MIN),
        (UNIT_PAGES_MIN * UNITS_MAX + 1, 2 * UNIT_PAGES_MIN),
        (1 << 24, 1 << 13),
    ],
)
def test_the_size_follows_the_number_of_pages(pages: int, size: int) -> None:
    assert unit_pages(pages) == size


PAGES = st.dictionaries(st.integers(0, 60), st.booleans(), max_size=40)


def space(pages: dict[int, bool]) -> Table:
    """A table of runs of one page each. Real runs are longer, but the results must be the same."""
    return runs(*((page, 1, resident) for page, resident in sorted(pages.items())))


@given(PAGES, st.sampled_from([1, 4, 16]), st.integers(0, 40))
def test_ranges_and_samples_are_pages_of_the_units(
    pages: dict[int, bool], size: int, most: int
) -> None:
    units = Units(space(pages), size)
    chosen = np.arange(len(units))[::-2]
    for resident in (True, False):
        found = units.ranges(chosen, resident, most)
        listed = [at for page, count, _ in found.tolist() for at in range(page, page + count)]
        numbers = set(units.numbers[chosen].tolist())
        wanted = {
            page for page, is_in in pages.items() if is_in is resident and page // size in numbers
        }
        assert len(listed) == min(most, len(wanted)) == len(set(listed) & wanted)
    sampled = np.flatnonzero(units.resident > 0)
    at = units.sample(sampled, np.random.default_rng(0))
    assert (at // size == units.numbers[sampled]).all()
    assert all(pages[page] for page in at.tolist())
