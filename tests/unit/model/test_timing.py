# SPDX-License-Identifier: Apache-2.0
"""The timing model: hand-computed cases and properties."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sentineld.shim
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.model.timing import (
    CACHED_BYTES,
    FAULT_PAGES_MAX,
    FAULT_PAGES_MIN,
    faults_of,
    timing_of,
)
from tests.unit.plan.toys import large_profile

GB = 1e9


def tiers(read: float, write: float, slow_read: float, slow_write: float) -> Tiers:
    return Tiers((Tier((0,), 0, read, write), Tier((1,), 0, slow_read, slow_write)), 1e9, "test")


def test_a_stretchs_time_equals_the_hand_computed_one() -> None:
    # In slow memory a byte takes 1/2 - 1/8 = 0.375 ns more to read and 1 - 1/4 = 0.75 ns more to
    # write.
    timing = timing_of(tiers(8 * GB, 4 * GB, 2 * GB, 1 * GB))
    assert (timing.read_ns_per_byte, timing.write_ns_per_byte) == (0.375, 0.75)
    assert (timing.promote_ns_per_byte, timing.birth_ns_per_byte) == (1.0, 0.0)
    profile = large_profile()
    rows = profile.accesses
    slow = np.zeros(len(rows))
    at = int(np.flatnonzero((rows["stretch"] == 3) & (rows["tensor"] == 3))[0])
    slow[at] = 0.5  # half of the state's 4 * 64 pages
    size = 4 * 64 * 4096
    expected = [1e9, 1e9, 1e9, 1e9 + 0.5 * (size * 0.375 + size / 2 * 0.75)]
    assert timing.stretch_ns(profile, slow).tolist() == expected


def overlapping(overlap: Overlap, slow: float, stretch_ns: int = 10**9) -> list[float]:
    """The time of each stretch of large_profile(). slow: share of the pages in slow memory.

    The four stretches (see toy_profile()) read 3, 2, 6 and 8 units of 64 pages, and write half of
    the bytes of these units. A unit takes 64 * 4096 * (1/8 + 1/2/4) ns = 65536 ns on the fast tier,
    and 4 times as long on the slow tier."""
    found = replace(tiers(8 * GB, 4 * GB, 2 * GB, 1 * GB), overlap=overlap)
    profile = large_profile()
    stretches = profile.stretches.copy()
    stretches["time_ns"] = stretch_ns
    profile = replace(profile, stretches=stretches)
    times = timing_of(found).stretch_ns(profile, np.full(len(profile.accesses), slow))
    return [float(time) for time in times]


UNITS = (3, 2, 6, 8)


def test_computation_hides_slow_accesses() -> None:
    # A stretch takes as long as its computation or as all of its accesses, whichever is longer.
    assert overlapping(Overlap.COMPUTE, 1.0) == [1e9] * 4
    found = overlapping(Overlap.COMPUTE, 0.5, stretch_ns=10**6)
    assert found == [max(1e6, 2.5 * 65536 * units) for units in UNITS]


def test_accesses_to_both_tiers_overlap() -> None:
    # If a fifth of the pages is slow, each tier is busy for 4/5 of the time that all accesses would
    # take in fast memory.
    for slow, time in ((0.0, 1.0), (0.1, 0.9), (0.2, 0.8), (0.5, 2.0), (1.0, 4.0)):
        expected = [1e9 + (time - 1) * 65536 * units for units in UNITS]
        assert overlapping(Overlap.TIERS, slow) == pytest.approx(expected, abs=1e-3)


def test_the_time_of_accesses_is_at_most_that_of_the_stretch() -> None:
    # A stretch takes only 1,000 ns. All its accesses together would take longer than this, even in
    # fast memory, so caches must have served some of them. In the model, caches do not reduce the
    # extra time of slow memory: 3 * 65536 ns for each unit.
    extra = [3 * 65536.0 * units for units in UNITS]
    assert overlapping(Overlap.COMPUTE, 1.0, 1000) == [1000 + one for one in extra]
    assert overlapping(Overlap.TIERS, 1.0, 1000) == pytest.approx([1000 + one for one in extra])


def test_with_an_unknown_bandwidth_nothing_overlaps() -> None:
    found = replace(tiers(8 * GB, 0.0, 2 * GB, 1 * GB), overlap=Overlap.COMPUTE)
    assert timing_of(found).overlap == Overlap.NONE


def test_small_tensors_cost_nothing_extra() -> None:
    timing = timing_of(tiers(8 * GB, 4 * GB, 2 * GB, 1 * GB))
    profile = large_profile()
    tensors = profile.tensors.copy()
    tensors["bytes"][3], tensors["bytes"][4] = CACHED_BYTES - 1, CACHED_BYTES
    extra = timing.extra_ns(replace(profile, tensors=tensors))
    state, parameter = profile.accesses["tensor"] == 3, profile.accesses["tensor"] == 4
    assert np.all(extra[state] == 0)
    assert np.all(extra[parameter] > 0)


def test_unknown_bandwidths_cost_nothing() -> None:
    unknown = timing_of(tiers(8 * GB, 4 * GB, 0.0, 1 * GB))
    assert (unknown.read_ns_per_byte, unknown.write_ns_per_byte) == (0.0, 0.75)
    alone = Tiers((Tier((0,), 0, GB, GB),), 0.0, "test")
    timing = timing_of(alone)
    assert (timing.read_ns_per_byte, timing.write_ns_per_byte) == (0.0, 0.0)
    assert timing.promote_ns_per_byte == float("inf")


def paged(read: float, write: float, share: float = 1.0) -> Tiers:
    file = Tier((1,), 0, read, write)
    both = share * 2 / (1 / read + 1 / write)
    return Tiers((Tier((0,), 0, 8 * GB, 8 * GB), file), both, "test", paged=True)


def test_a_paged_byte_is_promoted_by_a_read_and_demoted_by_a_write() -> None:
    timing = timing_of(paged(1 * GB, 4 * GB))
    assert timing.promote_ns_per_byte == pytest.approx(1.0)
    assert timing.demote_ns_per_byte == pytest.approx(0.25)
    assert timing.mean_move_ns_per_byte == pytest.approx(0.625)
    assert timing.demotion_weight == pytest.approx(0.25)
    assert timing.read_ns_per_byte == 1.0


def test_a_fault_takes_a_reads_latency_too() -> None:
    tiers_ = paged(1 * GB, 4 * GB)
    slow = replace(tiers_.tiers[1], read_latency_ns=1e5)
    timing = timing_of(replace(tiers_, tiers=(tiers_.tiers[0], slow)))
    assert timing.read_ns_per_byte == timing.promote_ns_per_byte == pytest.approx(1.0)
    profile = large_profile()
    written = profile.accesses["bytes_written"] > 0
    assert written.all()
    busy = timing.busy_ns(profile)
    pages = busy / profile.page_bytes
    assert pages == pytest.approx(np.rint(pages))
    assert timing.extra_ns(profile) == pytest.approx(busy + 1e5 * faults_of(pages))
    assert timing.write_back_ns(profile) == pytest.approx(0.25 * busy)


def test_each_fault_of_a_sequence_fetches_more() -> None:
    pages = np.array([0, 1, 32, 33, 96, 97, 224, 992, 993, 1504, 1505], np.float64)
    assert faults_of(pages).tolist() == [0, 1, 1, 2, 2, 3, 3, 5, 6, 6, 7]


def test_the_pager_reads_ahead_as_the_model_assumes() -> None:
    header = Path(sentineld.shim.__file__).parent / "native" / "pager" / "read_ahead.h"
    defined = dict(re.findall(r"#define READ_AHEAD_PAGES_(\w+) (\d+)u", header.read_text()))
    assert defined == {"MIN": str(FAULT_PAGES_MIN), "MAX": str(FAULT_PAGES_MAX)}


def test_less_bandwidth_for_moves_slows_both_directions() -> None:
    timing = timing_of(paged(1 * GB, 4 * GB, share=0.5))
    assert timing.promote_ns_per_byte == pytest.approx(2.0)
    assert timing.demote_ns_per_byte == pytest.approx(0.5)
    assert timing.read_ns_per_byte == 1.0


def test_on_other_tiers_both_directions_take_the_same_time() -> None:
    timing = timing_of(tiers(8 * GB, 4 * GB, 2 * GB, 1 * GB))
    assert timing.demote_ns_per_byte == timing.promote_ns_per_byte == timing.mean_move_ns_per_byte
    assert timing.demotion_weight == 1.0


rates = st.floats(1e8, 1e12)
shares = st.lists(st.floats(0, 1), min_size=9, max_size=9)


@given(rates, rates, rates, rates, shares, shares)
def test_times_are_at_least_all_fast_and_grow_with_the_slow_share(
    read: float,
    write: float,
    slow_read: float,
    slow_write: float,
    one: list[float],
    two: list[float],
) -> None:
    timing, profile = timing_of(tiers(read, write, slow_read, slow_write)), large_profile()
    times = profile.stretches["time_ns"]
    nothing, everything = np.zeros(9), np.ones(9)
    assert np.array_equal(timing.stretch_ns(profile, nothing), times)
    some = timing.stretch_ns(profile, np.array(one))
    more = timing.stretch_ns(profile, np.maximum(one, two))
    assert np.all(times <= some)
    assert np.all(some <= more)
    assert np.all(more <= timing.stretch_ns(profile, everything) + 1e-3)
