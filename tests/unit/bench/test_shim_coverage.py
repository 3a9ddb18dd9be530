# SPDX-License-Identifier: Apache-2.0
"""The shares of a step's tensors and bytes that a layout places, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import SLOT_DTYPE, SLOT_PLANNED, Layout
from tests.bench.shim.coverage import coverage
from tests.unit.plan.toys import PAGE, toy_profile


def layout(*placed: bool) -> Layout:
    slots = np.zeros(len(placed), SLOT_DTYPE)
    slots["flags"] = np.where(placed, SLOT_PLANNED, 0)
    return Layout(slots, np.zeros(0, np.uint32), (), np.full(4, -1, np.int32), 5 * PAGE)


def test_a_layout_that_places_every_slot() -> None:
    found = coverage(layout(True, True, True), toy_profile())
    assert (found.planned_share, found.planned_bytes_share) == (1.0, 1.0)
    # The peak of the tensors with slots is at the gradient's birth (see toy_profile()): activation
    # 2 pages + gradient 2 pages = 4 pages.
    assert found.peak_bytes == 4 * PAGE


def test_a_layout_that_leaves_a_slot_unplaced() -> None:
    found = coverage(layout(True, True, False), toy_profile())
    assert found.planned_share == pytest.approx(2 / 3)
    assert found.planned_bytes_share == pytest.approx((3 * PAGE - 100) / (5 * PAGE - 100))
    assert found.peak_bytes == 3 * PAGE


def test_tensors_without_a_slot_do_not_count() -> None:
    profile = toy_profile()
    without = replace(profile, tensors=profile.tensors[profile.tensors["slot"] >= 0])
    for placed in (True, False):
        one = layout(True, placed, True)
        assert coverage(one, profile) == coverage(one, without)
