# SPDX-License-Identifier: Apache-2.0
"""Policy `static`, checked by hand on the large toy (see large_profile())."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.check import verify
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import policy
from sentineld.policies.rivals.static import best_placement
from tests.unit.plan.toys import LARGE, PAGE, large_profile

PAGE_NS = 0.75 * PAGE
"""Extra ns when a slow page is read completely and half of it is written: 0.375 for each byte read,
0.75 for each byte written."""


def tiers() -> Tiers:
    return Tiers((Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)), 1e9, "toy")


def test_static_by_hand() -> None:
    # A unit is 64 pages. The budget is 4 units.
    #             units  alive in       accesses to units
    # parameter   2      all stretches  6
    # gradient    2      2 and 3        4
    # activation  2      0, 1 and 2     4
    # scratch     1      0              1
    # state       4      all stretches  4
    # The parameter takes 2 units. The other 2 units serve the gradient and, in stretch 0, the
    # scratch: 5 accesses, more than the activation's 4. The activation and the state stay slow, so
    # 8 of the 19 accesses are slow.
    plan = policy("static").plan(large_profile(), tiers(), 4 * LARGE * PAGE)
    verify(plan, large_profile(), 4 * LARGE * PAGE)
    regions = {region.name: region.bytes // PAGE // LARGE for region in plan.layout.regions}
    assert regions == {"fast-born": 2, "slow-born": 2}
    assert plan.initial_tier.tolist() == [255, 255, 255, 1, 0]
    assert plan.predicted.step_ns == pytest.approx(4e9 + 8 * LARGE * PAGE_NS, abs=2)
    assert not len(plan.moves)


def test_static_splits_lasting_tensors() -> None:
    # The budget is 3 units of 64 pages. Two units serve the gradient and, in stretch 0, the
    # scratch: 4 + 1 accesses (see the table in the test above). The third unit is one of the
    # parameter's two units and serves 3 accesses. Thus 8 of the 19 accesses are fast and 11 slow.
    plan = policy("static").plan(large_profile(), tiers(), 3 * LARGE * PAGE)
    verify(plan, large_profile(), 3 * LARGE * PAGE)
    assert plan.predicted.step_ns == pytest.approx(4e9 + 11 * LARGE * PAGE_NS, abs=2)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5), st.integers(0, 12 * LARGE))
def test_static_is_the_best_of_all_placements(gains: list[int], room: int) -> None:
    profile, pages = large_profile(), tensor_pages(large_profile())
    gain = np.array(gains, np.float64) * pages
    born, stays = best_placement(profile, gain, room)
    value = float(gain[born].sum() + (gain * stays / pages).sum())
    best = 0.0
    # Lifetimes in events: activation [1, 5), scratch [2, 3), gradient [4, 0), which ends in
    # the next step.
    for some in product((False, True), repeat=3):
        chosen = np.array([*some, False, False])
        taken = max(int(pages[:2][chosen[:2]].sum()), int(pages[[0, 2]][chosen[[0, 2]]].sum()))
        left, worth = room - taken, float(gain[chosen].sum())
        if left < 0:
            continue
        for tensor in sorted((3, 4), key=lambda t: -gain[t] / pages[t]):
            part = min(left, int(pages[tensor]))
            left, worth = left - part, worth + gain[tensor] * part / pages[tensor]
        best = max(best, worth)
    assert value <= best + 1e-6
    assert value >= best * (1 - 2e-3) - float((gain / pages).max())
