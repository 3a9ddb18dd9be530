# SPDX-License-Identifier: Apache-2.0
"""Plans that fixed_plan() makes for the large toy (see large_profile()): no tensor ever moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import Plan, Space
from sentineld.plan.check import verify
from sentineld.plan.residency import peak_fast_pages, residency
from sentineld.policies.rivals.fixed import fixed_pages, fixed_plan, slow_costs_ns
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.tiering import tiers

PAGE_NS = 0.75 * PAGE
"""Extra ns when a slow page is read completely and half of it is written: 0.375 for each byte read,
0.75 for each byte written."""


def plan(fast: list[bool], state: int, parameter: int, budget: int = 99 * LARGE) -> Plan:
    """A plan of fixed_plan() for the large toy.

    fast: whether activation, scratch and gradient are fast.
    state, parameter: number of fast pages of each of these two tensors.
    """
    return fixed_plan(
        "fixed",
        large_profile(),
        tiers(1.0),
        budget * PAGE,
        np.array([*fast, False, False]),
        np.array([0, 0, 0, state, parameter]),
        ("a note",),
    )


def test_costs_of_slow_tensors_by_hand() -> None:
    # Accesses in units of 64 pages: activation 4, scratch 1, gradient 4, state 4, parameter 6.
    costs = slow_costs_ns(large_profile(), tiers(1.0))
    assert costs == pytest.approx(np.array([4, 1, 4, 4, 6]) * LARGE * PAGE_NS, rel=1e-6)


def test_the_tensors_that_are_born_fast_are_packed() -> None:
    # Activation and gradient are alive together, but scratch and gradient are not.
    profile, nothing = large_profile(), np.zeros(5, np.int64)

    def pages(*fast: bool) -> int:
        return fixed_pages(profile, np.array([*fast, False, False]), nothing)

    assert pages(True, False, True) == 4 * LARGE
    assert pages(False, True, True) == 2 * LARGE
    assert pages(False, False, False) == 0
    state = np.array([9, 9, 9, 5, 7])  # only persistent tensors count
    assert fixed_pages(profile, np.zeros(5, np.bool_), state) == 12


def test_persistent_tensors_are_split_at_the_page() -> None:
    found = plan([True, False, False], state=10, parameter=2 * LARGE)
    rows = found.initial[["tensor", "space", "tier", "offset", "bytes"]].tolist()
    assert sorted(rows) == [
        (3, int(Space.HEAP), 0, 0, 10 * PAGE),
        (3, int(Space.HEAP), 1, 10 * PAGE, (4 * LARGE - 10) * PAGE),
        (4, int(Space.HEAP), 0, 4 * LARGE * PAGE, 2 * LARGE * PAGE),
    ]
    assert found.initial_tier.tolist() == [255, 255, 255, 1, 0]
    assert (found.policy, found.notes) == ("fixed", ("a note",))


def test_the_prediction_counts_what_is_slow() -> None:
    # In units of 64 pages, the slow accesses are 1 to the scratch, 4 to the gradient and 3 of the 4
    # to the state.
    found = plan([True, False, False], state=LARGE, parameter=2 * LARGE)
    assert found.predicted.step_ns == pytest.approx(4e9 + (1 + 4 + 3) * LARGE * PAGE_NS, abs=2)
    assert not len(found.moves)


@given(
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 4 * LARGE),
    st.integers(0, 2 * LARGE),
)
def test_any_placement_is_a_valid_plan_within_its_pages(
    fast: list[bool], state: int, parameter: int
) -> None:
    profile = large_profile()
    taken = fixed_pages(
        profile, np.array([*fast, False, False]), np.array([0, 0, 0, state, parameter])
    )
    found = plan(fast, state, parameter, taken)
    verify(found, profile, taken * PAGE)
    charged = peak_fast_pages(found, profile, residency(found, profile))
    assert charged.max() == taken
    tiers_of = {region.name: region.tier for region in found.layout.regions}
    assert tiers_of == {
        name: tier
        for name, tier in (("fast-born", 0), ("slow-born", 1))
        if (any(fast) if tier == 0 else not all(fast))
    }
