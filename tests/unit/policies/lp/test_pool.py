# SPDX-License-Identifier: Apache-2.0
"""The time that the linear program counts for births, and how this time changes plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.host.presets import preset_tiers
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.timing import timing_of
from sentineld.plan.check import verify
from sentineld.plan.turnover import turnover
from sentineld.policies.lp.groups import Groups, groups_of
from sentineld.policies.lp.pool import transient_groups_of
from sentineld.policies.lp.problem import Limits, changes_of
from sentineld.policies.lp.program import solve
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.unit.plan.toys import large_profile
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=4, weight_bytes=MIB // 4, activation_bytes=MIB // 2, bytes_per_s=4e9)
FREE = preset_tiers("cxl", 12)
COSTLY = replace(FREE, birth_ns_per_byte=0.2)
"""The tiers of FREE, but a birth takes 0.2 ns per byte. For comparison: slow memory adds 0.03 ns
per byte read and 0.04 ns per byte written."""


@pytest.fixture(scope="module")
def training() -> Profile:
    return profiled(NETWORK, tuple(range(4, 60, 4)))[0]


def born_pages(plan: Plan, profile: Profile) -> int:
    return int(turnover(plan.layout, profile, (0, 1, None)).births(profile).sum())


def test_transient_groups_are_born_and_gone_at_pressure_points() -> None:
    # See toy_profile(). The births at events 2 (scratch) and 4 (gradient) are pressure points,
    # because a death follows each of them. In stretches without births, the beginning is a pressure
    # point. The beginning of stretch 0 is also a pressure point, because the gradient dies in
    # stretch 0 before the first birth.
    groups = groups_of(large_profile(), timing_of(preset_tiers("cxl", 1)))
    found = transient_groups_of(groups)
    events = groups.points.event.tolist()
    lives = {
        int(groups.members[row][0]): (events[born], events[gone])
        for row, born, gone in zip(found.rows, found.born, found.gone, strict=True)
    }
    assert set(lives) == {0, 1, 2}  # the state and the parameter stay
    activation, scratch, gradient = lives[0], lives[1], lives[2]
    assert activation[0] == scratch[0]
    assert scratch[1] > scratch[0]
    assert gradient[0] == 4
    # The activation's first pressure point is also the first one after the gradient's death.
    assert gradient[1] == activation[0]


def births_of(groups: Groups, fast: Floats, capacity_pages: int) -> float:
    """The number of pages that a step faults in, if dead pages are kept as long as there is room.
    fast: fast pages of each group, as in Solution."""
    found, points = transient_groups_of(groups), len(groups.points.event)
    before, after = np.full((2, points), float(capacity_pages))
    for group in range(len(groups.pages)):
        point, position = groups.lived_points[group]
        following = np.minimum(position + 1, int(groups.length[group]) - 1)
        if groups.persistent[group]:
            following = (position + 1) % int(groups.length[group])
        np.subtract.at(before, point, fast[position, group])
        np.subtract.at(after, point, fast[following, group])
    # Dead pages need room both before and after the moves of a stretch.
    room = np.maximum(np.minimum(before, after), 0.0)
    first = fast[0, found.rows]
    last = fast[groups.length[found.rows] - 1, found.rows]
    born = np.bincount(found.born, first, minlength=points)
    gone = np.bincount(found.gone, np.minimum(first, last), minlength=points)
    left = made = 0.0
    for _ in range(3):
        made = 0.0
        for point in range(points):
            left += gone[point] - born[point]
            made, left = made - min(left, 0.0), max(left, 0.0)
            left = min(left, room[point])
    return made + float(np.maximum(last - first, 0.0).sum())


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5, 2.0])
@pytest.mark.parametrize("birth_ns", [100.0, 1000.0])
def test_the_program_counts_the_births_that_its_answer_needs(
    training: Profile, share: float, birth_ns: float
) -> None:
    groups = groups_of(training, timing_of(FREE))
    times = training.stretches["time_ns"].astype(np.float64)
    # Moves take nearly no time, so a stretch's time depends only on its accesses and births.
    limits = Limits(
        times_ns=times,
        promote_ns=1e-3,
        demote_ns=1e-3,
        capacity_pages=int(training.peak_bytes * share) // training.page_bytes,
        birth_ns=birth_ns,
    )
    solution = solve(groups, limits, changes_of(groups), "the test")
    assert solution is not None
    slow_ns = float(((groups.pages - solution.fast_pages) * groups.cost_ns).sum())
    births_ns = solution.step_ns - float(times.sum()) - slow_ns
    needed_ns = births_of(groups, solution.fast_pages, limits.capacity_pages) * birth_ns
    assert births_ns == pytest.approx(needed_ns, rel=0.02, abs=birth_ns)
    if share > 1:
        assert births_ns == pytest.approx(0.0, abs=birth_ns)


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_expensive_births_are_avoided(training: Profile, share: float) -> None:
    budget = int(training.peak_bytes * share)
    heedless, thrifty = (policy("auto").plan(training, tiers, budget) for tiers in (FREE, COSTLY))
    verify(thrifty, training, budget)
    assert born_pages(thrifty, training) < born_pages(heedless, training)
    slow, quick = (
        simulate(training, policy("auto"), COSTLY, budget, plan=plan)
        for plan in (heedless, thrifty)
    )
    assert quick.step_seconds < slow.step_seconds
    assert quick.birth_seconds < slow.birth_seconds


@pytest.mark.parametrize("name", ["auto", "sentinel+spill", "static"])
def test_the_prediction_counts_births_as_the_simulator_does(training: Profile, name: str) -> None:
    budget = training.peak_bytes // 4
    plan = policy(name).plan(training, COSTLY, budget)
    found = simulate(training, policy(name), COSTLY, budget, plan=plan)
    page = training.page_bytes
    assert found.birth_seconds == pytest.approx(born_pages(plan, training) * page * 0.2e-9)
    assert found.step_seconds == pytest.approx(found.predicted_seconds, rel=0.02)
