# SPDX-License-Identifier: Apache-2.0
"""The multi-level queue: which scans examine and clear the bits of a unit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.policies.temperature.levels import LEVELS, Levels, pause


def scanned(levels: Levels, used: bool) -> str:
    """Scan one unit. Returns "-" (not examined), "e" (examined) or "c" (examined and cleared)."""
    scan = levels.begin()
    levels.end(scan.cleared, np.array([used]))
    return "c" if scan.cleared[0] else "e" if scan.examined[0] else "-"


def test_a_used_unit_rises_and_is_cleared_less_and_less_often() -> None:
    levels = Levels(1)
    # At level 1 (after the first scan), one scan is skipped, and the scan after it clears the bits.
    # At level 2, one scan is skipped, and the second scan after it clears the bits; at level 3, the
    # fourth. At level 4, again, one scan is skipped.
    assert "".join(scanned(levels, True) for _ in range(12)) == "c-c-ec-eeec-"
    assert levels.level.tolist() == [4]


def test_an_idle_unit_falls_and_is_cleared_more_often() -> None:
    levels = Levels(1)
    while levels.level[0] < 3:
        scanned(levels, True)
    # At level 3, one scan is skipped, and the fourth scan after it clears the bits and finds the
    # unit idle. After a fall, no scan is skipped: at level 2, the second scan clears the bits; at
    # levels 1 and 0, each scan does.
    assert "".join(scanned(levels, False) for _ in range(10)) == "-eeececccc"
    assert levels.level.tolist() == [0]


def test_at_the_top_the_bits_are_cleared_in_one_of_64_scans() -> None:
    levels = Levels(1)
    while levels.level[0] < LEVELS - 1:
        scanned(levels, True)
    while scanned(levels, True) != "c":
        pass
    assert "".join(scanned(levels, True) for _ in range(64)) == "e" * 63 + "c"


def test_with_one_level_every_scan_clears_everything() -> None:
    levels = Levels(1, levels=1)
    assert "".join(scanned(levels, True) for _ in range(5)) == "ccccc"


def test_freed_units_begin_at_the_lowest_level() -> None:
    levels = Levels(2)
    for _ in range(6):
        scan = levels.begin()
        levels.end(scan.cleared, np.ones(2, np.bool_))
    levels.forget(np.array([True, False]))
    assert levels.level.tolist() == [0, 3]
    assert levels.begin().cleared.tolist() == [True, False]


@given(st.lists(st.booleans(), max_size=300), st.integers(1, LEVELS))
def test_no_unit_is_left_alone_for_longer_than_its_level_says(uses: list[bool], count: int) -> None:
    levels = Levels(1, levels=count)
    since = 0
    for used in uses:
        level = int(levels.level[0])
        since += 1
        found = scanned(levels, used)
        assert 0 <= levels.level[0] < count
        assert abs(int(levels.level[0]) - level) <= (found == "c")
        assert since <= int(pause(np.array([level]))[0]) + 1
        since = 0 if found == "c" else since
