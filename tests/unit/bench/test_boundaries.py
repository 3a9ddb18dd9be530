# SPDX-License-Identifier: Apache-2.0
"""What the boundaries' benchmark says of a trace: one made for it, so that it can be counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.profile import Kind
from sentineld.profile.steps import cut_count, identical
from sentineld.profile.trace import Trace, profile_of
from tests.bench.boundaries import Boundaries, boundaries_of, cut_anew, table
from tests.unit.traces import SMALL, recorded

HALF_OF_A_FIFTH = 0.1


def framework_only(trace: Trace) -> Trace:
    return replace(trace, samples=trace.samples[:0])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return framework_only(recorded())


def test_cutting_anew_makes_the_step_that_those_cuts_would_have_made(trace: Trace) -> None:
    anew = cut_anew(trace)
    assert len(anew.cuts)
    assert anew.cuts.tolist() != trace.cuts.tolist()
    really = recorded(SMALL, 2, tuple(anew.cuts.tolist()))
    assert identical(anew.access_step, really.access_step)
    assert np.array_equal(profile_of(anew).accesses, profile_of(framework_only(really)).accesses)


def test_a_cut_before_every_allocation_is_the_finest(trace: Trace) -> None:
    finest = cut_anew(trace, everywhere=True)
    assert cut_count(finest.access_step) == profile_of(trace).slot_count
    found = boundaries_of(trace)
    assert found.finest_touched <= found.touched
    assert found.finest_time <= found.time
    same = boundaries_of(finest)
    assert (same.touched, same.time) == (found.finest_touched, found.finest_time)
    assert same.holds


def test_touched_bytes_are_those_of_one_stretch(trace: Trace) -> None:
    profile = profile_of(trace)
    # The toy's operators touch whole tensors of whole pages.
    sizes = profile.tensors["bytes"][profile.accesses["tensor"]].astype(np.float64)
    touched = np.bincount(profile.accesses["stretch"], sizes)
    limit = profile.peak_bytes * HALF_OF_A_FIFTH
    assert boundaries_of(trace).touched == pytest.approx(touched.max() / limit)


def test_estimated_accesses_are_told_apart(trace: Trace) -> None:
    sure = boundaries_of(trace)
    assert sure.known_share > 0.9
    assert sure.estimated_share == 0
    ops = trace.op_accesses.copy()
    ops["estimated"] = True
    guessed = boundaries_of(replace(trace, op_accesses=ops))
    assert guessed.known_share == 0
    assert guessed.estimated_share == pytest.approx(sure.known_share)


def test_what_lies_outside_is_of_the_peak_and_may_be_unknown(trace: Trace) -> None:
    assert boundaries_of(trace).outside_share is None
    assert "?" in table({"it": boundaries_of(trace)})
    facts = {**trace.facts, "unmanaged_bytes": profile_of(trace).peak_bytes // 4}
    found = boundaries_of(replace(trace, facts=facts))
    assert found.outside_share == pytest.approx(0.25, rel=0.001)


@pytest.mark.parametrize(
    ("touched", "finest", "holds"), [(0.9, 0.1, True), (1.2, 0.9, False), (3.1, 3.0, True)]
)
def test_a_limit_holds_where_cuts_can_do_no_more(
    touched: float, finest: float, holds: bool
) -> None:
    for one in (
        Boundaries(9, 2, touched, finest, 0.5, 0.5, 1.0, 0.0, None, 1.0),
        Boundaries(9, 2, 0.5, 0.5, touched, finest, 1.0, 0.0, None, 1.0),
    ):
        assert one.holds == holds
        assert ("could be cut" in table({"it": one})) != holds


@pytest.mark.parametrize(("share", "planned"), [(1.0, True), (0.999, False)])
def test_an_allocation_that_is_not_planned_is_told(share: float, planned: bool) -> None:
    one = Boundaries(9, 2, 0.5, 0.5, 0.5, 0.5, 1.0, 0.0, None, share)
    assert one.planned == planned
    assert ("not all planned" in table({"it": one})) != planned


def test_the_toy_is_planned_but_for_what_it_keeps(trace: Trace) -> None:
    born = profile_of(trace).tensors
    born = born[born["slot"] >= 0]
    kept = np.count_nonzero(born["kind"] == Kind.PERSISTENT)
    assert boundaries_of(trace).planned_share == pytest.approx(1 - kept / len(born))
