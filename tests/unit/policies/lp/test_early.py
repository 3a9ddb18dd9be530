# SPDX-License-Identifier: Apache-2.0
"""The costs and credits that make the linear program prefer early moves."""

from __future__ import annotations

import numpy as np

from sentineld.model.timing import timing_of
from sentineld.policies.lp.early import EARLY_WORTH, early_worth
from sentineld.policies.lp.groups import groups_of
from tests.unit.policies.rivals.laps import Life, lap, moving


def test_fast_pages_are_charged_before_the_middle_of_a_gap_and_credited_behind_it() -> None:
    groups = groups_of(lap(8, Life(64, (0,))), timing_of(moving(64)))
    found = early_worth(groups, 0, np.ones(8))
    assert found[0] == 0.0
    assert (found[1:4] > 0).all()
    assert (found[5:] < 0).all()
    assert abs(float(found.sum())) <= EARLY_WORTH
    assert float(np.abs(found).sum()) <= 2 * EARLY_WORTH


def test_after_its_last_use_a_transient_group_is_only_charged() -> None:
    groups = groups_of(lap(8, Life(64, (0, 1), lives=(0, 6))), timing_of(moving(64)))
    found = early_worth(groups, 0, np.ones(8))
    assert (found[2:7] > 0).all()
