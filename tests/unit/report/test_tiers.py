# SPDX-License-Identifier: Apache-2.0
"""Figures of a plan by moment, boundary and tensor, compared with the toy plan made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.plan.residency import residency
from sentineld.report.labels import label_tensors
from sentineld.report.tiers import TIERS, boundary_moves, fast_shares_of_life, tier_timeline
from sentineld.report.timeline import timeline
from tests.unit.plan.toys import PAGE, late_plan, toy_plan, toy_profile

PROFILE, PLAN = toy_profile(), toy_plan()
FOUND = residency(PLAN, PROFILE)


def test_the_tiers_add_up_to_the_live_bytes() -> None:
    line = tier_timeline(PLAN, PROFILE, FOUND)
    assert line.live.shape == (len(TIERS), PROFILE.event_count + PROFILE.stretch_count)
    assert line.total.max() == timeline(PROFILE, label_tensors(PROFILE, {})).total.max()
    assert (line.live >= 0).all()
    assert (np.diff(line.times_ns) >= 0).all()
    fast, slow, chosen, unplanned = line.live // PAGE
    # When the optimizer begins, the activation is dead, half of the state has been promoted, and
    # the gradient is slow.
    assert (fast[-1], slow[-1]) == (4, 4)
    assert not chosen.any()
    assert not unplanned.any()


def test_tensors_outside_the_plan_are_a_group() -> None:
    slots = PLAN.layout.slots.copy()
    slots["flags"][0] = 0  # the activation is allocated from the heap
    plan = replace(PLAN, layout=replace(PLAN.layout, slots=slots))
    line = tier_timeline(plan, PROFILE, residency(plan, PROFILE))
    assert line.live[TIERS.index("not planned")].max() == 2 * PAGE
    shares = fast_shares_of_life(PROFILE, residency(plan, PROFILE))
    assert np.isnan(shares[0])


def test_moves_are_summed_by_boundary() -> None:
    moves = boundary_moves(PLAN, PROFILE)
    assert moves.down_bytes.tolist() == [2 * PAGE, 0, 0, 0]
    assert moves.up_bytes.tolist() == [0, 0, 2 * PAGE, 0]
    assert moves.count.tolist() == [1, 0, 1, 0]
    assert not moves.late_bytes.any()
    late = boundary_moves(late_plan(PLAN), PROFILE)
    assert late.late_bytes.tolist() == [0, 0, 2 * PAGE, 0]
    assert (late.waits >= 0).any()


def test_fast_shares_are_those_of_pages_and_stretches() -> None:
    # The first half of the state is fast in stretches 0 and 3.
    assert fast_shares_of_life(PROFILE, FOUND).tolist() == [1.0, 1.0, 0.0, 0.25, 1.0]
