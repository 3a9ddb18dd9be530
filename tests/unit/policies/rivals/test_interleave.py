# SPDX-License-Identifier: Apache-2.0
"""Policy `interleave`, checked by hand on the large toy (see large_profile())."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.model.tiers import Tier, Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.check import verify
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import policy
from sentineld.policies.rivals.fixed import fixed_pages
from sentineld.policies.rivals.interleave import SHARES, interleaved
from tests.unit.plan.toys import LARGE, PAGE, large_profile


def tiers() -> Tiers:
    return Tiers((Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)), 1e9, "toy")


def test_interleave_takes_turns_by_hand() -> None:
    # Each birth adds half of its pages to a balance; a fast birth then subtracts all of its pages.
    # A birth is fast if the balance is at least half of its pages. So the activation (128 pages) is
    # born fast: its birth raises the balance to 64 and then reduces it to -64. The scratch (63
    # pages, balance -32.5) and the gradient (128 pages, balance 31.5) are born slow.
    born, stays = interleaved(large_profile(), 0.5)
    assert born.tolist() == [True, False, False, False, False]
    assert stays.tolist() == [0, 0, 0, 2 * LARGE, LARGE]
    assert interleaved(large_profile(), 0.0)[0].sum() == 0
    assert interleaved(large_profile(), 1.0)[0].sum() == 3


@pytest.mark.parametrize("units", [1, 3, 4, 7, 12])
def test_interleave_keeps_the_best_share_that_fits(units: int) -> None:
    profile, budget = large_profile(), units * LARGE * PAGE
    plan = policy("interleave").plan(profile, tiers(), budget)
    verify(plan, profile, budget)
    extra = np.bincount(profile.accesses["tensor"], timing_of(tiers()).extra_ns(profile))
    costs = []
    for share in SHARES:
        born, stays = interleaved(profile, share)
        if fixed_pages(profile, born, stays) <= units * LARGE:
            slow = 1 - np.where(born, 1.0, stays / tensor_pages(profile))
            costs.append(4e9 + float((extra * slow).sum()))
    assert plan.predicted.step_ns == pytest.approx(min(costs), abs=2)
