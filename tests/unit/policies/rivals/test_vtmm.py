# SPDX-License-Identifier: Apache-2.0
"""Moves of vTMM, computed by hand: four cells of ten pages."""

from __future__ import annotations

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.rivals.vtmm import Scans
from tests.unit.policies.rivals.observing import observation


def seen(accesses: list[float], written: list[int], capacity: int = 21) -> Observation:
    """Cells 1 and 2 are fast, and one page is free."""
    return observation(accesses, [0, 10, 10, 0], free=1, capacity=capacity, written=written)


def test_pages_are_exchanged_once_they_are_in_a_hotter_bucket() -> None:
    scans = Scans(1.0, levels=1)
    # A scan adds 2 to the temperature of a page that was accessed, and 3 more if it was written
    # (history.py). A bucket has 5 temperatures (BUCKET_WIDTH in buckets.py). The scan finds cell 0
    # written (temperature 5), cell 1 only read (temperature 2) and the other cells idle
    # (temperature 0). Cell 0 is then in bucket 1 and the other cells are in bucket 0, so cell 0 is
    # promoted. The coldest fast cell makes room: cell 2.
    assert scans.tick(seen([1, 1, 0, 0], [1, 0, 0, 0])) == [
        MoveRequest(2, 1, 9),
        MoveRequest(0, 0, 10),
    ]


def test_writes_decide_between_pages_that_are_used_equally_often() -> None:
    scans = Scans(1.0, levels=1)
    # Each of the three scans finds all cells accessed. Cells 0 and 3 are written: their temperature
    # is 15 (bucket 3). The fast cells 1 and 2 are only read: their temperature is 6 (bucket 1).
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
        # Cell 0 is in bucket 1, and the fast cells are in bucket 0, the next one below. With a
        # margin of one bucket, the fast cells are not demoted, so only one page of cell 0 is
        # promoted: to the free page.
        found = scans.tick(seen([1, 1, 0, 0], [1, 0, 0, 0]))
        assert [request.cell for request in found] == cells


def test_the_queue_counts_a_use_until_its_bits_are_cleared() -> None:
    scans, plain = Scans(1.0), Scans(1.0, levels=1)
    # Cell 0 is read before scans 1, 3 and 4. With the multi-level queue (levels.py), scans 2 and 4
    # skip cell 0, because scans 1 and 3 have raised its level. Scan 5 finds the bit of the third
    # read and does not clear it, so scan 6 finds this bit, too. Scans 1, 3, 5 and 6 count: the
    # temperature is 2 x 4 = 8 (bucket 1), so cell 0 is hot. Without the queue, scans 1, 3 and 4
    # count: the temperature is 2 x 3 = 6 (bucket 1). Only the last 20 scans count. At scan 21,
    # without the queue, the temperature is thus 2 x 2 = 4 (bucket 0).
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
