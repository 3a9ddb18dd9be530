# SPDX-License-Identifier: Apache-2.0
"""Moves and faults of NUMA balancing, checked by hand: four cells of ten pages."""

from __future__ import annotations

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.rivals.numab import HintFaults
from sentineld.policies.rivals.reactive import HINT_FAULT_NS
from tests.unit.policies.rivals.observing import observation


def seen(now_ns: float, *used: int, free: int = 0, capacity: int = 1000) -> Observation:
    """Cells 1 and 2 are fast. used: the cells that were accessed in the last stretch."""
    accesses = [float(cell in used) for cell in range(4)]
    return observation(accesses, [0, 10, 10, 0], free=free, capacity=capacity, now_ns=now_ns)


def test_a_page_is_promoted_at_its_first_fault_after_a_scan() -> None:
    faults = HintFaults(100.0)
    # The first tick scans. Cells 0 and 3 are slow. 2 of 1000 pages should be free: 0.2 %, the first
    # watermark of SETTINGS.
    assert faults.tick(seen(0.0, 0, 1, 2)) == []
    assert faults.delay_ns() == 0.0
    # Cell 0 faults. Room for 2 + 10 pages is needed, but only the 10 pages of cell 2 are demoted,
    # because cell 1 was accessed in the last stretch.
    up = MoveRequest(0, 0, 10)
    assert faults.tick(seen(10.0, 0, 1)) == [MoveRequest(2, 1, 10), up]
    assert faults.delay_ns() == 10 * HINT_FAULT_NS
    # Until the next scan, cell 0 does not fault again, and its promotion stays requested.
    assert faults.tick(seen(20.0, 0, 1, 2, free=10)) == [up]
    assert faults.delay_ns() == 0.0


def test_a_page_that_faults_late_is_not_promoted() -> None:
    for hot_within, moves in ((0.25, []), (1.0, [MoveRequest(3, 0, 5)])):
        faults = HintFaults(100.0, hot_within)
        faults.tick(seen(0.0, free=5))
        faults.tick(seen(30.0, free=5))
        # The fault comes after the tick at 30 ns, so at least 30 ns after the scan at 0 ns. A page
        # is hot if it faults within 25 or 100 ns of the scan (hot_within x 100 ns). A fault takes
        # time even without a promotion.
        assert faults.tick(seen(40.0, 3, free=5)) == moves
        assert faults.delay_ns() == 10 * HINT_FAULT_NS


def test_if_much_is_free_every_page_that_faults_is_promoted() -> None:
    faults = HintFaults(100.0, 0.25)
    faults.tick(seen(0.0))
    faults.tick(seen(30.0))
    assert faults.tick(seen(40.0, 3, free=63)) == [MoveRequest(3, 0, 10)]


def test_each_scan_makes_slow_pages_fault_again() -> None:
    faults, delays = HintFaults(100.0), []
    for now_ns in (0.0, 50.0, 100.0, 150.0):
        faults.tick(seen(now_ns, 0, 3))
        delays.append(faults.delay_ns())
    # The scans are at 0 and 100 ns.
    assert delays == [0.0, 20 * HINT_FAULT_NS, 0.0, 20 * HINT_FAULT_NS]


def test_a_page_that_was_not_used_keeps_the_time_of_its_first_scan() -> None:
    faults = HintFaults(100.0)
    faults.tick(seen(0.0, free=5))
    faults.tick(seen(100.0, free=5))
    faults.tick(seen(110.0, free=5))
    # Cell 0 faults for the first time. The first scan was more than 100 ns ago, so cell 0 is not
    # hot.
    assert faults.tick(seen(120.0, 0, free=5)) == []
