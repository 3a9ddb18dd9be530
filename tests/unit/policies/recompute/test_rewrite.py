# SPDX-License-Identifier: Apache-2.0
"""Profiles of steps that compute tensors again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Placement
from sentineld.plan.check import verify
from sentineld.policies.recompute.candidates import Recomputation, candidates, compatible
from sentineld.policies.recompute.rewrite import halves, inserted_events, recomputed
from sentineld.policies.registry import policy
from tests.unit.policies.recompute.test_candidates import OF_Y
from tests.unit.policies.recompute.toys import (
    PAGE,
    TIMES_NS,
    UNIT,
    G,
    S,
    W,
    X,
    Y,
    Z,
    layered_profile,
)
from tests.unit.workloads import Network, profiled

AGAIN, COPY = 6, 7
"""Rows of the changed profile: y after its recomputation, and the scratch tensor's copy."""


def amounts(profile: Profile, stretch: int, tensor: int) -> tuple[int, int]:
    rows = profile.accesses
    found = rows[(rows["stretch"] == stretch) & (rows["tensor"] == tensor)]
    assert len(found) <= 1
    return int(found["bytes_read"].sum()), int(found["bytes_written"].sum())


def test_a_recomputation_changes_the_step_as_computed_by_hand() -> None:
    profile = layered_profile()
    found = recomputed(profile, [OF_Y])
    # Events of the changed step. "0 x": x is born at event 0; s is the scratch tensor; the bars are
    # the beginnings of stretches 4, 5 and 6.
    # 0 x, 1 s, 2 y, 3 s freed, 4 z, 5 y freed | 6 g, 7 z freed | 8 s, 9 y, 10 s freed, 11 y freed,
    # 12 x freed | 13 g freed
    rows = [X, S, Y, Z, G, W, AGAIN, COPY]
    assert found.tensors["birth_event"][rows].tolist() == [0, 1, 2, 4, 6, 0, 9, 8]
    assert found.tensors["death_event"][rows].tolist() == [12, 3, 5, 7, 13, 14, 11, 10]
    assert found.tensors["birth_stretch"][rows].tolist() == [1, 2, 2, 3, 4, 0, 5, 5]
    assert found.tensors["death_stretch"][rows].tolist() == [5, 2, 3, 4, 6, 6, 5, 5]
    assert found.tensors["slot"][rows].tolist() == [0, 1, 2, 3, 4, -1, 6, 5]
    assert found.tensors["kind"][[AGAIN, COPY]].tolist() == [Kind.SCRATCH, Kind.SCRATCH]
    assert found.tensors["bytes"][[AGAIN, COPY]].tolist() == [UNIT, 4 * PAGE]
    assert found.stretches["event"].tolist() == [0, 0, 1, 4, 6, 8, 13]
    assert found.stretches["cursor"].tolist() == [0, 0, 1, 3, 4, 5, 7]
    assert (found.slot_count, found.event_count) == (7, 14)
    times = list(TIMES_NS)
    times[5] += TIMES_NS[2]
    assert found.stretches["time_ns"].tolist() == times
    # In stretch 5, layer b is executed again: it reads x and W, writes and reads the scratch
    # tensor, and writes y. Then the stretch's own operators read x, W and y.
    assert amounts(found, 5, X) == (2 * UNIT, 0)
    assert amounts(found, 5, W) == (2 * UNIT, 0)
    assert amounts(found, 5, COPY) == (4 * PAGE, 4 * PAGE)
    assert amounts(found, 5, AGAIN) == (UNIT, UNIT)
    assert amounts(found, 5, Y) == (0, 0)
    assert amounts(found, 3, Y) == (UNIT, 0)
    # The peak was 5 units, in stretch 4. Without y, stretch 4 has 4 units. Now the peak is in
    # stretch 5: 4 units and the scratch tensor.
    assert found.peak_bytes == 4 * UNIT + 4 * PAGE
    assert inserted_events(profile, OF_Y) == 3


def test_the_copy_of_a_placed_tensor_is_not_placed() -> None:
    profile = layered_profile()
    profile.tensors["placed"][S] = Placement.FAST
    found = recomputed(profile, [OF_Y])
    assert found.tensors["placed"][[S, COPY]].tolist() == [Placement.FAST, Placement.AUTO]


def test_without_recomputations_the_step_is_the_same() -> None:
    profile = layered_profile()
    assert recomputed(profile, []) is profile


def test_the_parts_of_a_tensor_have_its_accesses_and_lifetime() -> None:
    profile = layered_profile()
    both, rows = halves(profile, [OF_Y])
    assert rows.tolist() == [[Y, 6, 7]]
    assert [amounts(both, stretch, 6) for stretch in (2, 3, 5)] == [(0, UNIT), (UNIT, 0), (0, 0)]
    assert [amounts(both, stretch, 7) for stretch in (2, 3, 5)] == [(0, 0), (0, 0), (UNIT, UNIT)]
    assert amounts(both, 5, Y) == (UNIT, 0)
    assert both.tensors["death_stretch"][[6, 7]].tolist() == [3, 5]
    assert both.tensors["birth_stretch"][[6, 7]].tolist() == [2, 5]


def any_of(profile: Profile, seed: int) -> list[Recomputation]:
    """Some candidates that do not exclude each other."""
    every = candidates(profile)
    random = np.random.default_rng(seed)
    chosen: list[Recomputation] = []
    for at in random.permutation(len(every))[: random.integers(1, len(every) + 1)].tolist():
        if compatible(chosen, every[at]):
            chosen.append(every[at])
    return chosen


@settings(max_examples=15)
@given(st.integers(1, 5), st.integers(0, 1000), st.sampled_from([0.3, 0.6, 1.0]))
def test_a_changed_step_is_consistent_and_has_a_valid_plan(
    blocks: int, seed: int, share: float
) -> None:
    network = Network(blocks, weight_bytes=40 * PAGE, activation_bytes=90 * PAGE, bytes_per_s=2e9)
    profile = profiled(network, (3, 7, 12, 20))[0]
    chosen = any_of(profile, seed)
    found = recomputed(profile, chosen)
    assert found.step_ns == profile.step_ns + sum(one.time_ns for one in chosen)
    born = found.tensors["slot"] >= 0
    assert sorted(found.tensors["slot"][born].tolist()) == list(range(found.slot_count))
    dies = found.tensors["kind"] != Kind.PERSISTENT
    events = [*found.tensors["birth_event"][born], *found.tensors["death_event"][dies]]
    assert len(set(events)) == len(events)
    begins = np.append(found.stretches["event"], found.event_count)
    for end, which in (("birth", born), ("death", dies)):
        event, stretch = (found.tensors[f"{end}_{what}"][which] for what in ("event", "stretch"))
        assert (begins[stretch] <= event).all()
        assert (event < begins[stretch + 1]).all()
    # No tensor is accessed in a stretch in which it is not alive.
    one = found.tensors[found.accesses["tensor"]]
    inside = (one["birth_stretch"] <= found.accesses["stretch"]) & (
        found.accesses["stretch"] <= one["death_stretch"]
    )
    assert (inside | one["wraps"]).all()
    before, after = (p.accesses["bytes_read"].sum() for p in (profile, found))
    assert after >= before
    budget = int(found.peak_bytes * share)
    plan = policy("auto").plan(found, preset_tiers("cxl", 1), budget)
    verify(plan, found, budget)


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_dropped_tensor_is_read_from_its_later_part(blocks: int) -> None:
    network = Network(blocks, weight_bytes=40 * PAGE, activation_bytes=90 * PAGE, bytes_per_s=2e9)
    profile = profiled(network)[0]
    for one in candidates(profile):
        found = recomputed(profile, [one])
        for number, (row, end) in enumerate(one.dropped):
            uses = found.accesses["stretch"][found.accesses["tensor"] == row]
            later = found.accesses["stretch"][
                found.accesses["tensor"] == len(profile.tensors) + number
            ]
            assert uses.max() == end
            assert later.min() == one.at
