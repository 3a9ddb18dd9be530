# SPDX-License-Identifier: Apache-2.0
"""Temperatures: examples computed by hand, and random ones compared with sums over lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.policies.temperature.history import SCANS, TEMPERATURE_MAX, History

UNITS = 3
BITS = st.lists(st.booleans(), min_size=UNITS, max_size=UNITS).map(np.array)


def test_writes_are_hotter_than_reads_and_old_scans_are_forgotten() -> None:
    everything = np.ones(UNITS, np.bool_)
    history = History(UNITS)
    # Unit 0 is written, unit 1 is only read, unit 2 is idle.
    accessed, written = np.array([True, True, False]), np.array([True, False, False])
    history.record(everything, accessed, written)
    assert history.temperature().tolist() == [2 + 3, 2, 0]
    history.record(everything, accessed, written)
    assert history.temperature().tolist() == [10, 4, 0]
    idle = np.zeros(UNITS, np.bool_)
    for _ in range(SCANS - 2):
        history.record(everything, idle, idle)
    assert history.temperature().tolist() == [10, 4, 0]
    history.record(everything, idle, idle)  # scan 21, so scan 1 is forgotten
    assert history.temperature().tolist() == [5, 2, 0]


def test_the_hottest_page_is_written_in_every_scan() -> None:
    everything = np.ones(1, np.bool_)
    history = History(1)
    for _ in range(2 * SCANS):
        history.record(everything, everything, everything)
    assert history.temperature().tolist() == [TEMPERATURE_MAX] == [100]


def test_freed_units_begin_again() -> None:
    everything = np.ones(2, np.bool_)
    history = History(2)
    history.record(everything, everything, everything)
    history.forget(np.array([True, False]))
    assert history.temperature().tolist() == [0, 5]
    history.record(everything, everything, ~everything)
    assert history.temperature().tolist() == [2, 7]


@given(st.lists(st.tuples(BITS, BITS, BITS), max_size=60))
def test_the_temperature_counts_the_last_scans_of_each_unit(
    scans: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> None:
    history = History(UNITS)
    found: list[list[int]] = [[] for _ in range(UNITS)]
    for units, accessed, written in scans:
        history.record(units, accessed, written)
        for unit in np.flatnonzero(units).tolist():
            found[unit].append(2 * int(accessed[unit]) + 3 * int(written[unit]))
    assert history.temperature().tolist() == [sum(unit[-SCANS:]) for unit in found]


def test_scans_are_counted_until_the_first_is_forgotten() -> None:
    history, everything = History(UNITS), np.ones(UNITS, np.bool_)
    some = np.array([True, False, True])
    history.record(everything, everything, everything)
    history.record(some, everything, everything)
    assert history.scans.tolist() == [2, 1, 2]
    history.forget(np.array([True, False, False]))
    history.carry(np.array([2, 0, -1, 1]))
    assert history.scans.tolist() == [2, 0, 0, 1]
    for _ in range(2 * SCANS):
        history.record(np.ones(4, np.bool_), np.zeros(4, np.bool_), np.zeros(4, np.bool_))
    assert history.scans.tolist() == [SCANS + 1] * 4
