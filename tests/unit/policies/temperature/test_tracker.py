# SPDX-License-Identifier: Apache-2.0
"""Temperatures of pages whose bits stay set until a scan clears them, computed by hand.

A scan adds 2 to a page's temperature if it finds the accessed bit set, and 3 if it finds the dirty
bit set (history.py). levels.py describes the levels of pages.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Mask
from sentineld.policies.temperature.tracker import Tracker


class Pages:
    """The accessed and dirty bits of two pages."""

    def __init__(self) -> None:
        self.accessed: Mask = np.zeros(2, np.bool_)
        self.written: Mask = np.zeros(2, np.bool_)

    def scan(self, tracker: Tracker) -> list[int]:
        scan = tracker.begin()
        tracker.end(scan, self.accessed.copy(), self.written.copy())
        self.accessed[scan.cleared] = False
        self.written[scan.cleared] = False
        return tracker.temperature().tolist()


def test_bits_that_are_left_alone_count_in_each_scan() -> None:
    pages, tracker = Pages(), Tracker(2)
    pages.written[0] = pages.accessed[0] = True
    # Page 0 is written before scan 1 only; page 1 is never accessed. Scan 1 clears the bits, and
    # page 0 rises to level 1, so scan 2 skips it. Scan 3 finds it idle.
    assert [pages.scan(tracker) for _ in range(3)] == [[5, 0], [5, 0], [5, 0]]
    # Reads before scans 4 and 6 raise page 0 to levels 1 and 2. Scans 5 and 7 skip the page.
    pages.accessed[0] = True
    assert pages.scan(tracker) == [7, 0]
    assert pages.scan(tracker) == [7, 0]
    pages.accessed[0] = True
    assert [pages.scan(tracker) for _ in range(2)] == [[9, 0], [9, 0]]
    # One read before scan 8 counts in scans 8 and 9, because only scan 9 clears the bit.
    pages.accessed[0] = True
    assert [pages.scan(tracker) for _ in range(2)] == [[11, 0], [13, 0]]


def test_freed_pages_are_new() -> None:
    pages, tracker = Pages(), Tracker(2)
    pages.accessed[:] = True
    pages.scan(tracker)
    tracker.forget(np.array([True, False]))
    pages.accessed[:] = True
    # Scan 2 skips page 1, which is at level 1; page 0 is at level 0 again.
    assert pages.scan(tracker) == [2, 2]


def test_without_the_queue_each_scan_counts_once() -> None:
    pages, tracker = Pages(), Tracker(2, levels=1)
    for used in (True, True, False, True):
        pages.accessed[0] = used
        pages.scan(tracker)
    assert tracker.temperature().tolist() == [6, 0]
