# SPDX-License-Identifier: Apache-2.0
"""Moves of vTMM, checked by hand: four cells of ten pages."""

from __future__ import annotations

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.rivals.vtmm import Scans
from tests.unit.policies.rivals.observing import observation


def seen(accesses: list[float], written: list[int], capacity: int = 21) -> Observation:
    """Cells 1 and 2 are fast, and one page is free."""
    return observation(accesses, [0, 10, 10, 0], free=1, capacity=capacity, written=written)


def test_pages_are_exchanged_once_they_are_in_a_hotter_bucket() -> None:
    scans = Scans(1.0, levels=1)
    # Cell 0 is written in each scan (5 more each time), cell 1 is read (2 more), the others are
    # idle. After scan 1, cell 0 is in bucket 1 and the other cells are in bucket 0, so cell 0 is
    # promoted. The coldest fast cell makes room: cell 2.
    assert scans.tick(seen([1, 1, 0, 0], [1, 0, 0, 0])) == [
        MoveRequest(2, 1, 9),
        MoveRequest(0, 0, 10),
    ]


def test_writes_decide_between_pages_that_are_used_equally_often() -> None:
    scans = Scans(1.0, levels=1)
    # All cells are used in each of three scans: cells 0 and 3 are written, which gives 15 (bucket
    # 3); the fast cells 1 and 2 are only read, which gives 6 (bucket 1).
    for _ in range(2):
        scans.tick(seen([1, 1, 1, 1], [1, 0, 0, 1], capacity=20))
    assert scans.tick(seen([1, 1, 1, 1], [1, 0, 0, 1], capacity=20)) == [
        MoveRequest(1, 1, 10),
        MoveRequest(2, 1, 9),
        MoveRequest(0, 0, 10),
        MoveRequest(3, 0, 10),
    ]


def test_nothing_moves_if_no_bucket_fits_as_a_whole() -> None:
    scans = Scans(1.0, levels=1)
    for _ in range(3):
        assert scans.tick(seen([1, 1, 1, 1], [0, 0, 0, 0], capacity=20)) == []


def test_the_margin_keeps_pages_of_the_next_bucket() -> None:
    for margin, cells in ((0, [2, 0]), (1, [0])):
        scans = Scans(1.0, levels=1, margin=margin)
        # Cell 0 is in bucket 1, the fast cells in bucket 0, one below. So with a margin of one
        # bucket, no cell can make room, and the free page takes one page of cell 0.
        found = scans.tick(seen([1, 1, 0, 0], [1, 0, 0, 0]))
        assert [request.cell for request in found] == cells


def test_the_queue_counts_a_use_until_its_bits_are_cleared() -> None:
    scans, plain = Scans(1.0), Scans(1.0, levels=1)
    # Cell 0 is read before scans 1, 3 and 4 of 6. With the queue, scan 2 skips the cell, which is
    # at level 1. Scan 3 clears its bits (level 2), scan 4 skips it, scan 5 finds the bit of the
    # third use and does not clear it, and scan 6 finds it again: 2 x 4 = 8, bucket 1, hot.
    # Without the queue, three scans find it: 2 x 3 = 6, which is bucket 1, too. It stays there
    # until scan 21, which forgets the first of these scans: 2 x 2 = 4 is bucket 0.
    for used in (1, 0, 1, 1, 0):
        scans.tick(seen([used, 0, 0, 0], [0, 0, 0, 0]))
        plain.tick(seen([used, 0, 0, 0], [0, 0, 0, 0]))
    idle = seen([0, 0, 0, 0], [0, 0, 0, 0])
    exchanged = [MoveRequest(1, 1, 9), MoveRequest(0, 0, 10)]
    assert scans.tick(idle) == plain.tick(idle) == exchanged
    for _ in range(14):
        assert plain.tick(idle) == exchanged
    assert plain.tick(idle) == []


def test_freed_pages_lose_their_temperature() -> None:
    scans = Scans(1.0, levels=1)
    hot = seen([1, 0, 0, 0], [1, 0, 0, 0])
    scans.tick(hot)
    hot.slow[0] = 0
    scans.tick(hot)
    assert scans.tick(seen([0, 0, 0, 0], [0, 0, 0, 0])) == []
