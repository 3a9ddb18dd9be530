# SPDX-License-Identifier: Apache-2.0
"""Groups of tensors with equal lifetimes and costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.profile import Profile
from sentineld.model.timing import Timing, timing_of
from sentineld.plan.items import by_position, tensor_pages
from sentineld.policies.lp.groups import Groups, groups_of, most_costly
from tests.unit.plan.toys import LARGE, PAGE, large_profile, toy_profile
from tests.unit.policies.rivals.laps import Life, lap, moving
from tests.unit.policies.tiering import tiers

PAGE_NS = (0.375 + 0.75 / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written, as in the large toy."""


def grouped(profile: Profile) -> Groups:
    return groups_of(profile, timing_of(moving(1.0)))


def members(groups: Groups) -> list[list[int]]:
    return [rows.tolist() for rows in groups.members]


def test_groups_of_the_large_toy() -> None:
    groups = groups_of(large_profile(), timing_of(tiers(1.0)))
    assert members(groups) == [[0], [1], [2], [3], [4]]
    assert groups.birth.tolist() == [0, 0, 2, 0, 0]
    assert groups.length.tolist() == [3, 1, 3, 4, 4]
    assert groups.pages.tolist() == [2 * LARGE, 63, 2 * LARGE, 4 * LARGE, 2 * LARGE]
    assert groups.persistent.tolist() == [False, False, False, True, True]
    used = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 0, 1], [1, 0, 0, 0, 1], [0, 0, 0, 1, 1]])
    assert groups.cost_ns == pytest.approx(used * PAGE_NS, rel=0.02)
    # The gradient lives in stretches 2 and 3, and in stretch 0 of the next step.
    assert groups.stretches[2].tolist() == [2, 3, 0]


def test_small_tensors_cost_nothing_and_are_in_no_group() -> None:
    assert members(groups_of(toy_profile(), timing_of(tiers(1.0)))) == []


def test_tensors_that_are_alike_are_one_group() -> None:
    alike, later = Life(32, (0, 2)), Life(32, (1, 2))
    short, other = Life(48, (1, 2), (1, 2)), Life(15, (1, 2), (1, 2))
    groups = grouped(lap(4, alike, later, short, alike, other))
    assert members(groups)[:2] == [[0, 3], [1]]
    assert groups.pages.tolist()[:2] == [64, 32]
    assert [sizes.tolist() for sizes in groups.sizes][:2] == [[32, 32], [32]]
    # The last tensor fits in the CPU caches.
    assert members(groups)[2:] == [[2]]


def test_a_group_is_alive_at_the_points_between_its_birth_and_death() -> None:
    groups = groups_of(large_profile(), timing_of(tiers(1.0)))
    # The pressure points are:
    # 0  the beginning of stretch 0
    # 1  after the births in stretch 0
    # 2  the beginning of stretch 1
    # 3  after the gradient's birth in stretch 2
    # 4  the beginning of stretch 3
    lived = {
        int(rows[0]): (points.tolist(), positions.tolist())
        for rows, (points, positions) in zip(groups.members, groups.lived_points, strict=True)
    }
    assert lived[0] == ([1, 2, 3], [0, 1, 2])  # the activation
    assert lived[1] == ([1], [0])  # the scratch
    assert lived[2] == ([3, 4, 0], [0, 1, 2])  # the gradient, until its death in the next step
    assert lived[3] == ([0, 1, 2, 3, 4], [0, 0, 1, 2, 3])  # the state


def test_a_group_that_dies_in_its_birth_stretch_is_alive_there_twice() -> None:
    # The activation is born in stretch 0 at event 1. In this test, it dies in the next step at
    # event 0, so in stretch 0 it is alive before its death and after its birth. Position 3 of its
    # life is stretch 3 together with the beginning of stretch 0.
    profile = large_profile()
    tensors = profile.tensors.copy()
    tensors["death_event"][0], tensors["death_stretch"][0], tensors["wraps"][0] = 0, 0, True
    profile = replace(profile, tensors=tensors)
    for generous in (False, True):
        groups = groups_of(profile, timing_of(tiers(1.0)), generous=generous)
        (at,) = (group for group, rows in enumerate(groups.members) if rows.tolist() == [0])
        points, positions = groups.lived_points[at]
        found = list(zip(points.tolist(), positions.tolist(), strict=True))
        inner = [(2, 1), (3, 2), (4, 3)]
        # In the groups for a bound (generous), the tensor is absent at its first and last position.
        assert found == (inner[:2] if generous else [(1, 0), *inner, (0, 3)])


def test_the_most_costly_groups_in_their_order() -> None:
    # Costs in units of 64 page accesses: parameter 6, activation 4, gradient 4, state 4, scratch 1.
    groups = groups_of(large_profile(), timing_of(tiers(1.0)))
    assert members(most_costly(groups, 1)) == [[4]]
    assert members(most_costly(groups, 4)) == [[0], [2], [3], [4]]
    assert most_costly(groups, 5) is groups
    assert most_costly(groups, 4).points is groups.points


def test_only_a_bound_counts_tensors_that_no_layout_can_place() -> None:
    profile = large_profile()
    profile.tensors["address"][3] = profile.heap_base - PAGE
    timing = timing_of(tiers(1.0))
    assert [3] not in members(groups_of(profile, timing))
    assert [3] in members(groups_of(profile, timing, generous=True))


@given(
    st.lists(st.integers(0, 1 << 30), min_size=9, max_size=9),
    st.floats(0.01, 10.0),
    st.floats(0.01, 10.0),
)
def test_costs_have_four_digits_and_a_bound_rounds_them_down(
    sizes: list[int], read_ns: float, write_ns: float
) -> None:
    profile = large_profile()
    profile.accesses["bytes_read"] = sizes
    timing = Timing(read_ns, write_ns, 1.0, 1.0)
    exact = by_position(profile, timing.extra_ns(profile)) / tensor_pages(profile)
    for generous in (False, True):
        groups = groups_of(profile, timing, generous=generous)
        for at, rows in enumerate(groups.members):
            cost, wanted = groups.cost_ns[:, at], exact[:, rows[0]]
            assert cost == pytest.approx(wanted, rel=1.1e-3)
            assert np.all(cost <= wanted * (1 + 1e-9)) or not generous


def test_without_a_time_for_accesses_nothing_matters() -> None:
    profile = large_profile()
    nothing = replace(profile, accesses=profile.accesses[:0])
    assert members(groups_of(nothing, timing_of(tiers(1.0)))) == []
