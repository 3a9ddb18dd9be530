# SPDX-License-Identifier: Apache-2.0
"""Moves of transparent page placement, checked by hand: four cells of ten pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.plan.policy import MoveRequest
from sentineld.policies.rivals.numab import HintFaults
from sentineld.policies.rivals.reactive import HINT_FAULT_NS
from sentineld.policies.rivals.tpp import Scanner
from tests.unit.policies.rivals.observing import observation


def test_tpp_promotes_at_the_second_touch_and_keeps_room_for_births() -> None:
    # 5 of 1000 pages are free, but 20 should be free (the watermark of 2 %, DEMOTE_BELOW[0]). 10
    # slow pages fault at their second touch. So room for 20 - 5 + 10 = 25 pages is needed. Of the
    # two fast cells, cell 2 is cold and cell 1 was just touched.
    seen = observation([1, 3, 0, 0], [0, 10, 10, 0], free=5, capacity=1000)
    scanner = Scanner(1.0)
    # At the first touch, pages are only marked, not promoted. The first tick nevertheless demotes
    # pages, because too few are free.
    assert scanner.tick(seen) == [MoveRequest(2, 1, 10)]
    assert scanner.tick(seen) == [MoveRequest(2, 1, 10), MoveRequest(0, 0, 10)]


def test_the_watermark_can_be_lower() -> None:
    seen = observation([1, 3, 0, 0], [0, 10, 10, 0], free=5, capacity=1000)
    scanner = Scanner(1.0, demote_below=0.005)
    # 5 of 1000 pages are free, which is exactly the watermark, so no page is demoted.
    assert scanner.tick(seen) == scanner.tick(seen) == []


def test_tpp_leaves_headroom() -> None:
    scanner = Scanner(1.0)
    seen = observation([1, 0, 0, 0], [0, 10, 0, 0], free=22, capacity=1000)
    scanner.tick(seen)
    assert scanner.tick(seen) == [MoveRequest(0, 0, 10)]
    seen = observation([1, 1, 1, 1], [0, 10, 0, 0], free=6, capacity=1000)
    # No page is cold, so none is demoted. 5 of the 6 free pages (0.5 % of 1000, HEADROOM) stay
    # free.
    assert scanner.tick(seen) == [MoveRequest(0, 0, 1)]


def test_hint_faults_take_as_much_time_as_under_numa_balancing() -> None:
    scanner, balancing = Scanner(100.0), HintFaults(100.0)
    balancing.tick(observation([0, 0, 0, 0], [0, 10, 10, 0], now_ns=0.0))  # the first scan
    # Cells 0 and 1 are accessed in the first period, but only cell 0 is slow. Each of its pages
    # faults once, however often it is accessed.
    seen = observation([3, 1, 0, 0], [0, 10, 10, 0], now_ns=50.0)
    for reactor in (scanner, balancing):
        reactor.tick(seen)
        assert reactor.delay_ns() == 10 * HINT_FAULT_NS


def test_only_pages_that_were_slow_at_the_last_scan_fault() -> None:
    scanner, delays = Scanner(100.0), []
    # Six pages of cell 0 are slow from the first scan on. The other four are demoted in the second
    # period. The cell is accessed in all periods but the last one.
    for accesses, fast in ((1, 4), (1, 0), (1, 0), (0, 0)):
        scanner.tick(observation([accesses, 0, 0, 0], [fast, 10, 10, 10]))
        delays.append(scanner.delay_ns())
    assert delays == [pages * HINT_FAULT_NS for pages in (6, 6, 10, 0)]


def test_a_page_is_promoted_at_its_second_fault_however_late() -> None:
    scanner = Scanner(1.0)
    touched, idle = (observation([used, 0, 0, 0], [0, 0, 0, 0], free=1000) for used in (1, 0))
    assert scanner.tick(touched) == scanner.tick(idle) == []
    assert scanner.tick(touched) == [MoveRequest(0, 0, 10)]


def test_a_page_that_is_demoted_or_born_again_has_no_mark() -> None:
    fast, slow = (observation([1, 0, 0, 0], [pages, 0, 0, 0], free=1000) for pages in (10, 0))
    absent = replace(slow, accesses=np.zeros(4), slow=np.array([0, 10, 10, 10]))
    for between in (fast, absent):
        scanner = Scanner(1.0)
        scanner.tick(slow)
        # At the second tick, the pages of cell 0 are fast (first case) or freed (second case). When
        # they are slow again, they fault from the next scan on.
        assert scanner.tick(between) == scanner.tick(slow) == scanner.tick(slow) == []
        assert scanner.tick(slow) == [MoveRequest(0, 0, 10)]
