# SPDX-License-Identifier: Apache-2.0
"""The fast-share bound of the toy, checked by hand, and its properties at any budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.policies.bounds.fast_share import fast_share_bound
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers

USES = 19
"""Page accesses of the toy: activation 4, scratch 1, gradient 4, state 4, parameter 6."""


def test_with_room_for_everything_all_is_fast() -> None:
    bound = fast_share_bound(toy_profile(), 11 * PAGE, 0.0)
    assert (bound.fast_share, bound.fixed_share) == (1.0, 1.0)


def test_tensors_that_live_within_a_stretch_take_no_room() -> None:
    # Only the scratch lives within a stretch; it has 1 of the 19 accesses.
    bound = fast_share_bound(toy_profile(), 0, 0.0)
    assert bound.fixed_share == pytest.approx(1 / USES, abs=0.01)
    assert bound.fast_share == pytest.approx(1 / USES, abs=0.01)


def test_the_best_placement_of_two_pages() -> None:
    # The bound counts live tensors at boundaries only. Activation and gradient are both alive in
    # stretch 2, but at no boundary are both of them alive, so both fit; they have 4 accesses each.
    # The scratch takes no room and has 1 access.
    bound = fast_share_bound(toy_profile(), 2 * PAGE, 0.0)
    assert bound.fixed_share == pytest.approx(9 / USES, abs=0.02)
    assert bound.fast_share == pytest.approx(bound.fixed_share)


def test_moves_raise_the_bound() -> None:
    slow, quick = (fast_share_bound(toy_profile(), 4 * PAGE, rate) for rate in (PAGE, 100 * PAGE))
    assert slow.fixed_share == pytest.approx(quick.fixed_share)
    assert slow.fixed_share < slow.fast_share <= quick.fast_share


def test_without_accesses_everything_is_fast() -> None:
    profile = toy_profile()
    bound = fast_share_bound(replace(profile, accesses=profile.accesses[:0]), 0, 0.0)
    assert (bound.fast_share, bound.fixed_share) == (1.0, 1.0)


def test_a_tensor_takes_no_room_before_its_birth() -> None:
    """Two tensors of one page each, alive one after the other, share a budget of one page. (1) is
    an access to one page, as in toy_profile().

    stretch       0 step      1 forward        2 backward
    first         [born (1)   (1) dies]
    second                         [born (1)   (1) dies]
    """
    toy = toy_profile()
    tensors, accesses = toy.tensors[:2].copy(), toy.accesses[:4].copy()
    tensors["bytes"] = PAGE
    tensors["birth_event"], tensors["death_event"] = [1, 3], [2, 5]
    tensors["birth_stretch"], tensors["death_stretch"] = [0, 1], [1, 2]
    accesses["tensor"], accesses["stretch"] = [0, 0, 1, 1], [0, 1, 1, 2]
    accesses["bytes_read"], accesses["pages"] = PAGE, 1
    profile = replace(toy, tensors=tensors, accesses=accesses, slot_count=2, peak_bytes=PAGE)
    assert fast_share_bound(profile, PAGE, 0.0).fixed_share == 1.0


@settings(max_examples=20)
@given(st.integers(2, 12), st.floats(1.0, 100.0))
def test_no_plan_serves_more(pages: int, pages_per_s: float) -> None:
    profile, rate = toy_profile(), pages_per_s * PAGE
    bound = fast_share_bound(profile, pages * PAGE, rate, rounds=60)
    assert 0 < bound.fixed_share <= 1
    assert 0 < bound.fast_share <= 1
    for name, limit in (("sentinel", bound.fast_share), ("static", bound.fixed_share)):
        plan = policy(name).plan(profile, two_tiers(rate), pages * PAGE)
        assert plan.predicted.fast_share <= limit + 1e-9
