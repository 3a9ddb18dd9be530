# SPDX-License-Identifier: Apache-2.0
"""The time of accesses to slow pages is removed from a profile's times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Profile
from sentineld.model.timing import Timing
from sentineld.profile.fast_times import slow_shares, with_fast_times

MIB = 1 << 20
PAGES = MIB // 4096
# A byte in fast memory takes 1 ns to read or to write. In slow memory, it takes 2 ns more to read
# and 3 ns more to write.
TIMING = Timing(2.0, 3.0, 1.0, 1.0, fast_read_ns_per_byte=1.0, fast_write_ns_per_byte=1.0)


def profile(*rows: tuple[int, int, int, int, int], times: tuple[int, ...]) -> Profile:
    """A profile of tensors of 1 MiB. rows: (stretch, tensor, bytes read, bytes written, pages)."""
    tensors = np.zeros(1 + max(row[1] for row in rows), TENSOR_DTYPE)
    tensors["bytes"] = MIB
    stretches = np.zeros(len(times), STRETCH_DTYPE)
    stretches["time_ns"] = times
    return Profile(
        tensors=tensors,
        accesses=np.array([(*row, row[4]) for row in rows], ACCESS_DTYPE),
        stretches=stretches,
        layers=("",),
        slot_count=len(tensors),
        event_count=0,
        page_bytes=4096,
        peak_bytes=MIB * len(tensors),
        source="module",
        unattributed_pages=0,
    )


WHOLE = profile(
    (0, 0, MIB, 0, PAGES), (0, 1, 0, MIB, PAGES), (1, 1, MIB, 0, PAGES), times=(10 * MIB, 4 * MIB)
)


def test_the_shares_are_those_of_the_rows_pages() -> None:
    slow = replace(WHOLE, accesses=WHOLE.accesses[1:].copy())
    slow.accesses["pages"] = PAGES // 4, PAGES
    assert slow_shares(WHOLE, slow).tolist() == [0.0, 0.25, 1.0]
    nothing = replace(WHOLE, accesses=WHOLE.accesses[:0])
    assert slow_shares(WHOLE, nothing).tolist() == [0.0, 0.0, 0.0]


def test_a_row_that_only_the_framework_reported_has_no_slow_pages() -> None:
    unsampled = replace(WHOLE, accesses=WHOLE.accesses.copy())
    unsampled.accesses["pages"][0] = 0
    slow = replace(WHOLE, accesses=WHOLE.accesses[2:])
    assert slow_shares(unsampled, slow).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ((0.0, 0.0, 0.0), (10 * MIB, 4 * MIB)),
        ((0.5, 0.0, 1.0), (9 * MIB, 2 * MIB)),
        ((1.0, 1.0, 0.5), (5 * MIB, 3 * MIB)),
    ],
)
def test_the_time_of_slow_accesses_is_removed(
    slow: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    found = with_fast_times(WHOLE, np.array(slow), TIMING)
    assert found.stretches["time_ns"].tolist() == list(expected)
    assert WHOLE.stretches["time_ns"].tolist() == [10 * MIB, 4 * MIB]


def test_a_stretch_takes_at_least_its_fast_accesses() -> None:
    # In units of 2**20 ns: stretch 0 takes 6. According to the model, slow memory adds 5 of these
    # 6. But the accesses of this stretch alone take 2 in fast memory, so the result is 2, not 6 - 5
    # = 1.
    short = replace(WHOLE, stretches=WHOLE.stretches.copy())
    short.stretches["time_ns"][0] = 6 * MIB
    found = with_fast_times(short, np.ones(3), TIMING)
    assert found.stretches["time_ns"].tolist() == [2 * MIB, 2 * MIB]


def test_unknown_bandwidths_change_nothing() -> None:
    found = with_fast_times(WHOLE, np.ones(3), Timing(0.0, 0.0, 1.0, 1.0))
    assert found.stretches["time_ns"].tolist() == [10 * MIB, 4 * MIB]
