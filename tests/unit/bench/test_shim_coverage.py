# SPDX-License-Identifier: Apache-2.0
"""How much of a step a layout places, counted by hand."""

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


def test_all_of_it() -> None:
    found = coverage(layout(True, True, True), toy_profile())
    assert (found.planned_share, found.planned_bytes_share) == (1.0, 1.0)
    # The activation with the scratch, or with the gradient.
    assert found.peak_bytes == 4 * PAGE


def test_a_part_of_it() -> None:
    found = coverage(layout(True, True, False), toy_profile())
    assert found.planned_share == pytest.approx(2 / 3)
    assert found.planned_bytes_share == pytest.approx((3 * PAGE - 100) / (5 * PAGE - 100))
    assert found.peak_bytes == 3 * PAGE


def test_what_was_there_before_has_no_slot_and_does_not_count() -> None:
    profile = toy_profile()
    without = replace(profile, tensors=profile.tensors[profile.tensors["slot"] >= 0])
    for placed in (True, False):
        one = layout(True, placed, True)
        assert coverage(one, profile) == coverage(one, without)
