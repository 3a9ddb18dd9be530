# SPDX-License-Identifier: Apache-2.0
"""bench-boundaries on a toy trace whose figures can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.profile import Kind
from sentineld.profile.steps import cut_count, identical
from sentineld.profile.trace import Trace, profile_of
from tests.bench.boundaries import Boundaries, boundaries_of, recut, table
from tests.unit.traces import SMALL, recorded

TOUCHED_LIMIT_OVER_PEAK = 0.1  # half of the budget; the budget is 20 % of the peak


def framework_only(trace: Trace) -> Trace:
    return replace(trace, samples=trace.samples[:0])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return framework_only(recorded())


def test_recutting_equals_recording_with_those_cuts(trace: Trace) -> None:
    recut_trace = recut(trace)
    assert len(recut_trace.cuts)
    assert recut_trace.cuts.tolist() != trace.cuts.tolist()
    expected = framework_only(recorded(SMALL, 2, tuple(recut_trace.cuts.tolist())))
    assert identical(recut_trace.access_step, expected.access_step)
    assert np.array_equal(profile_of(recut_trace).accesses, profile_of(expected).accesses)


def test_cutting_before_every_allocation_gives_the_finest_figures(trace: Trace) -> None:
    finest = recut(trace, everywhere=True)
    assert cut_count(finest.access_step) == profile_of(trace).slot_count
    found = boundaries_of(trace)
    assert found.finest_touched <= found.touched
    assert found.finest_time <= found.time
    same = boundaries_of(finest)
    assert (same.touched, same.time) == (found.finest_touched, found.finest_time)
    assert same.holds


def test_touched_is_the_maximum_over_stretches(trace: Trace) -> None:
    profile = profile_of(trace)
    # The toy trainer's operators touch whole tensors, and each tensor fills whole pages.
    sizes = profile.tensors["bytes"][profile.accesses["tensor"]].astype(np.float64)
    touched = np.bincount(profile.accesses["stretch"], sizes)
    limit = profile.peak_bytes * TOUCHED_LIMIT_OVER_PEAK
    assert boundaries_of(trace).touched == pytest.approx(touched.max() / limit)


def test_estimated_accesses_are_counted_separately(trace: Trace) -> None:
    exact = boundaries_of(trace)
    assert exact.known_share > 0.9
    assert exact.estimated_share == 0
    ops = trace.op_accesses.copy()
    ops["estimated"] = True
    guessed = boundaries_of(replace(trace, op_accesses=ops))
    assert guessed.known_share == 0
    assert guessed.estimated_share == pytest.approx(exact.known_share)


def test_the_unmanaged_share_is_relative_to_the_peak_or_unknown(trace: Trace) -> None:
    assert boundaries_of(trace).outside_share is None
    assert "?" in table({"it": boundaries_of(trace)})
    facts = {**trace.facts, "unmanaged_bytes": profile_of(trace).peak_bytes // 4}
    found = boundaries_of(replace(trace, facts=facts))
    assert found.outside_share == pytest.approx(0.25, rel=0.001)


@pytest.mark.parametrize(
    ("touched", "finest", "holds"), [(0.9, 0.1, True), (1.2, 0.9, False), (3.1, 3.0, True)]
)
def test_a_limit_holds_if_more_cuts_would_not_help(
    touched: float, finest: float, holds: bool
) -> None:
    for one in (
        Boundaries(9, 2, touched, finest, 0.5, 0.5, 1.0, 0.0, None, 1.0),
        Boundaries(9, 2, 0.5, 0.5, touched, finest, 1.0, 0.0, None, 1.0),
    ):
        assert one.holds == holds
        assert ("could be cut" in table({"it": one})) != holds


@pytest.mark.parametrize(("share", "planned"), [(1.0, True), (0.999, False)])
def test_unplanned_allocations_are_reported(share: float, planned: bool) -> None:
    one = Boundaries(9, 2, 0.5, 0.5, 0.5, 0.5, 1.0, 0.0, None, share)
    assert one.planned == planned
    assert ("not all planned" in table({"it": one})) != planned


def test_only_persistent_tensors_of_the_toy_are_unplanned(trace: Trace) -> None:
    born = profile_of(trace).tensors
    born = born[born["slot"] >= 0]
    kept = np.count_nonzero(born["kind"] == Kind.PERSISTENT)
    assert boundaries_of(trace).planned_share == pytest.approx(1 - kept / len(born))
