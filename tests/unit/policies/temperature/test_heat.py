# SPDX-License-Identifier: Apache-2.0
"""Processes of a few units whose accesses are chosen by the test."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from sentineld.model.arrays import Table
from sentineld.model.records import PAGE_RUN_DTYPE
from sentineld.policies.temperature.heat import (
    REST,
    RETURN_WEIGHT,
    Heat,
    Sample,
    excess_pages,
    room_pages,
)
from sentineld.policies.temperature.history import SCANS
from sentineld.policies.temperature.units import UNIT_PAGES_MIN, Units

UNIT = UNIT_PAGES_MIN
ALL = 10**9
ENOUGH = 8


class Process:
    """A process of `count` units of UNIT pages, of which the units in `hot` are accessed."""

    def __init__(self, count: int, hot: set[int]) -> None:
        self.resident = np.ones(count, np.bool_)
        self.hot = hot
        self.heat = Heat(np.random.default_rng(1))

    def runs(self, units: Iterable[int]) -> Table:
        rows = [(unit * UNIT, UNIT, bool(self.resident[unit])) for unit in sorted(units)]
        return np.array(rows, PAGE_RUN_DTYPE)

    def units(self) -> Units:
        return Units(self.runs(range(len(self.resident))), UNIT)

    def accessed(self, sample: Sample) -> list[bool]:
        return [page // UNIT in self.hot for page in sample.pages.tolist()]

    def scan(self, budget_units: int, samples_max: int = ALL) -> None:
        self.resident[list(self.hot)] = True  # the process swaps hot pages in by accessing them
        self.heat.renew(self.units())
        sample = self.heat.begin(samples_max)
        accessed = np.array(self.accessed(sample), np.bool_)
        self.heat.end(sample, accessed, budget_units * UNIT)

    def page_out(self, units: int) -> list[int]:
        """Page out up to this many units; returns their numbers."""
        found = self.heat.to_page_out(units * UNIT)
        numbers = (found["page"] // UNIT).tolist()
        self.resident[numbers] = False
        assert self.heat.paged_out(np.array(numbers), self.runs(numbers)) == len(numbers) * UNIT
        return numbers


def numbers(found: Table) -> list[int]:
    return (found["page"] // UNIT).tolist()


def test_cold_units_leave_and_hot_units_stay() -> None:
    process = Process(8, {2, 3, 6})
    for _ in range(ENOUGH):
        process.scan(4)
    assert set(process.page_out(5)) == {0, 1, 4, 5, 7}
    assert set(numbers(process.heat.to_page_out(ALL))) == {2, 3, 6}


def test_the_sample_has_at_most_the_given_number_of_pages() -> None:
    process = Process(8, {0, 1, 2, 3})
    for _ in range(40):
        process.scan(4, samples_max=2)
    assert set(process.page_out(4)) == {4, 5, 6, 7}


def test_a_hot_set_that_moves_displaces_the_old_one() -> None:
    process = Process(6, {0, 1})
    for _ in range(ENOUGH):
        process.scan(3)
    assert set(process.page_out(3)) <= {2, 3, 4, 5}
    process.hot = {4, 5}
    for _ in range(3 * ENOUGH):
        process.scan(3)
    assert not set(process.page_out(2)) & {4, 5}


def test_without_accessed_bits_units_that_return_are_hot() -> None:
    process = Process(4, {1})
    process.heat.renew(process.units())
    process.heat.end_unseen(ALL)
    assert len(process.page_out(4)) == 4
    process.resident[1] = True
    assert process.heat.renew(process.units()) == UNIT
    process.heat.end_unseen(ALL)
    process.resident[0] = True  # swapped in after the scan, so not known to be hot
    process.heat.renew(process.units())
    assert process.page_out(1) == [0]


def test_the_rest_of_a_hot_unit_is_fetched_once() -> None:
    heat = Heat(np.random.default_rng(1))

    def renew(resident: int) -> int:
        rows = [(0, resident, True), (resident, UNIT - resident, False)]
        return heat.renew(Units(np.array([row for row in rows if row[1]], PAGE_RUN_DTYPE), UNIT))

    renew(UNIT)
    for resident in (1, 2, 3):
        renew(resident)
        heat.end_unseen(ALL)
    assert heat.to_fetch(5).tolist() == [(3, 5, False)]
    assert len(heat.to_fetch(ALL)) == 0


def test_a_return_counts_although_the_scan_did_not_sample_the_unit() -> None:
    process = Process(2, set())
    process.heat.renew(process.units())
    nothing = np.zeros(0, np.bool_)
    process.heat.end(process.heat.begin(0), nothing, ALL)
    for resident in (False, True):
        process.resident[0] = resident
        process.heat.renew(process.units())
    process.heat.end(process.heat.begin(0), nothing, ALL)
    assert numbers(process.heat.to_page_out(ALL)) == [1, 0]


def test_units_that_the_kernel_keeps_are_left_alone_for_some_scans() -> None:
    process = Process(2, set())
    process.scan(1)
    found = process.heat.to_page_out(UNIT)
    assert process.heat.paged_out(np.array(numbers(found)), process.runs(numbers(found))) == 0
    other = 1 - numbers(found)[0]
    assert numbers(process.heat.to_page_out(ALL)) == [other]
    for _ in range(REST):
        process.scan(1)
    assert sorted(numbers(process.heat.to_page_out(ALL))) == [0, 1]


def test_a_scan_survives_changes_of_the_address_space() -> None:
    process = Process(6, {0, 1})
    process.scan(2)
    sample = process.heat.begin(ALL)
    # Units 0 and 3 are unmapped, and unit 6 is new.
    rows = [(unit * UNIT, UNIT, True) for unit in (1, 2, 4, 5, 6)]
    process.heat.renew(Units(np.array(rows, PAGE_RUN_DTYPE), UNIT))
    accessed = np.array(process.accessed(sample), np.bool_)
    process.heat.end(sample, accessed, 2 * UNIT)
    order = numbers(process.heat.to_page_out(ALL))
    assert sorted(order) == [1, 2, 4, 5, 6]
    assert order[-1] == 1


def test_page_outs_begin_at_half_the_slack_and_free_all_of_it() -> None:
    budget = 3200  # slack (the pages that are free after page-outs; SLACK_SHARE): 100 pages
    assert excess_pages(3150, budget) == 0
    assert excess_pages(3151, budget) == 51
    assert excess_pages(4200, budget) == 1100
    assert room_pages(3000, budget) == 100
    assert room_pages(3200, budget) == 0


WINDOW_S, INTERVAL_S = 0.5, 2.0


def rates(process: Process, seen: bool = True) -> list[float]:
    """Faults per second of each page: first one number per unit for its resident pages, then one
    per unit for its swapped pages."""
    found, pages = process.heat.fault_rates(WINDOW_S, INTERVAL_S, seen)
    assert pages.sum() == len(process.resident) * UNIT
    return found.tolist()


def test_fault_rates_are_the_shares_of_scans_that_found_the_pages_used() -> None:
    process = Process(2, {0})
    process.heat.renew(process.units())
    # Until the first scan, new pages count as used.
    assert rates(process) == [1 / WINDOW_S] * 2 + [0, 0]
    process.scan(2)
    assert rates(process) == [1 / WINDOW_S, 0, 0, 0]
    process.hot = {1}
    # A scan that finds a unit used is followed by one that skips the unit. So after three scans,
    # each unit has been examined twice and has been found used once.
    process.scan(2)
    process.scan(2)
    assert rates(process) == [0.5 / WINDOW_S, 0.5 / WINDOW_S, 0, 0]
    for _ in range(30):
        process.scan(2)
    assert rates(process)[:2] == [0, 1 / WINDOW_S]


def test_the_fault_rates_of_swapped_pages_are_the_rates_of_their_returns() -> None:
    process = Process(1, set())
    process.scan(1)
    process.resident[0] = False
    process.heat.renew(process.units())
    assert rates(process) == [0, 0]
    # Half of the pages are swapped in, and then paged out again.
    half = np.array([(0, UNIT // 2, True), (UNIT // 2, UNIT // 2, False)], PAGE_RUN_DTYPE)
    process.heat.renew(Units(half, UNIT))
    process.heat.renew(process.units())
    process.scan(1)
    expected = RETURN_WEIGHT * (UNIT // 2) / UNIT / INTERVAL_S
    assert rates(process)[1] == pytest.approx(expected)
    process.scan(1)
    assert rates(process)[1] == pytest.approx((1 - RETURN_WEIGHT) * expected)


def test_without_accessed_bits_pages_count_as_used_for_some_time_after_they_return() -> None:
    process = Process(2, set())
    for _ in range(2):
        process.heat.renew(process.units())
        process.heat.end_unseen(2 * UNIT)
    once = (1 - 1 / SCANS) / WINDOW_S
    assert rates(process, seen=False)[:2] == pytest.approx([once * (1 - 1 / SCANS)] * 2)
    # Unit 1 is paged out and then swapped in again.
    for resident in (False, True):
        process.resident[1] = resident
        process.heat.renew(process.units())
    process.heat.end_unseen(2 * UNIT)
    assert rates(process, seen=False)[1] == 1 / WINDOW_S
    for _ in range(int(SCANS * np.log(SCANS)) + 1):
        process.heat.end_unseen(2 * UNIT)
    assert rates(process, seen=False)[:2] == [0, 0]


def test_without_accessed_bits_the_rates_begin_with_those_of_the_last_bits() -> None:
    process = Process(2, {0})
    for _ in range(70):
        process.scan(2)
    process.heat.end_unseen(2 * UNIT)
    assert rates(process, seen=False)[:2] == pytest.approx([(1 - 1 / SCANS) / WINDOW_S, 0])


def test_a_missed_scan_records_only_returns() -> None:
    process = Process(3, {0})
    for _ in range(ENOUGH):
        process.scan(ALL)
    before = rates(process), rates(process, seen=False)
    process.heat.end_missed(ALL)
    assert (rates(process), rates(process, seen=False)) == before
    for resident in (False, True):
        process.resident[1] = resident
        process.heat.renew(process.units())
    process.heat.end_missed(ALL)
    assert rates(process)[0] == before[0][0]
    assert rates(process)[1] > before[0][1]
    assert numbers(process.heat.to_page_out(ALL)) == [2, 1, 0]


def test_swapped_pages_cause_at_most_one_fault_in_each_window() -> None:
    process = Process(1, set())
    process.scan(1)
    for _ in range(50):
        for resident in (True, False):
            process.resident[0] = resident
            process.heat.renew(process.units())
    process.scan(1)
    assert rates(process)[1] == 1 / WINDOW_S
