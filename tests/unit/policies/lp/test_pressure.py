# SPDX-License-Identifier: Apache-2.0
"""Pressure points: a placement that fits at all of them fits at every event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.profile import STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.policies.lp.pressure import pressure_points_of
from tests.unit.plan.toys import toy_profile


def test_points_of_the_toy() -> None:
    # Stretches begin at the events 0, 4, 4 and 6. In stretch 0, the gradient dies at event 0. The
    # births at events 1 and 2 follow, and then the scratch's death. Stretches 1 and 3 have no
    # event. In stretch 2, the gradient is born at event 4.
    points = pressure_points_of(toy_profile(), np.array([0, 1, 2]))
    assert points.first.tolist() == [0, 2, 3, 4, 5]
    assert points.event.tolist() == [-1, 2, 3, 4, 5]
    assert points.share.tolist() == [0.0, 0.5, 0.0, 0.0, 0.0]
    assert [points.of(stretch) for stretch in range(4)] == [2, 1, 1, 1]
    assert [points.before(0, event) for event in (-1, 0, 2, 3)] == [0, 1, 1, 2]


def test_without_tensors_each_stretch_has_the_point_at_its_begin() -> None:
    points = pressure_points_of(toy_profile(), np.zeros(0, np.int64))
    assert points.first.tolist() == [0, 1, 2, 3, 4]
    assert points.event.tolist() == [-1, 3, 3, 5]


@st.composite
def steps(draw: st.DrawFn) -> Profile:
    """Transient tensors; each event is one birth or one death."""
    count = draw(st.integers(1, 8))
    order = draw(st.permutations([*range(count), *range(count)]))
    begins = sorted(draw(st.lists(st.integers(0, 2 * count), min_size=1, max_size=4)))
    stretches = np.zeros(len(begins) + 1, STRETCH_DTYPE)
    stretches["event"][1:] = begins
    tensors = np.zeros(count, TENSOR_DTYPE)
    tensors["kind"], tensors["slot"] = Kind.ACTIVATION, np.arange(count)
    tensors["bytes"] = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    for row in range(count):
        ends = [at for at, who in enumerate(order) if who == row]
        birth, death = ends[::-1] if draw(st.booleans()) else ends
        tensors["birth_event"][row], tensors["death_event"][row] = birth, death
    return replace(toy_profile(), tensors=tensors, stretches=stretches, event_count=2 * count)


def live_bytes(profile: Profile, event: int) -> int:
    """Bytes that are live after an event; event -1 is the beginning of the step."""
    total = 0
    for row in profile.tensors:
        birth, death = int(row["birth_event"]), int(row["death_event"])
        alive = birth <= event < death if death > birth else event >= birth or event < death
        total += int(row["bytes"]) * alive
    return total


@given(steps())
def test_no_event_of_a_stretch_has_more_live_bytes_than_its_points(profile: Profile) -> None:
    points = pressure_points_of(profile, np.arange(len(profile.tensors)))
    begins = [*profile.stretches["event"].tolist(), profile.event_count]
    assert len(points.first) == len(begins)
    for stretch in range(profile.stretch_count):
        begin, end = begins[stretch], begins[stretch + 1]
        here = points.event[points.first[stretch] : points.first[stretch + 1]].tolist()
        assert here == sorted(set(here))
        assert set(here) <= set(range(begin - 1, end))
        most = max(live_bytes(profile, event) for event in range(begin - 1, end))
        assert max(live_bytes(profile, event) for event in here) == most
        assert points.of(stretch) == len(here) >= 1
