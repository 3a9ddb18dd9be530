# SPDX-License-Identifier: Apache-2.0
"""Policies on paged tiers: each makes a valid plan or reports that none is feasible, and no
simulated step is shorter than the step-time bound."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import managing_names, policy
from sentineld.simulate.simulate import simulate
from tests.conftest import examples
from tests.unit.policies.rivals.laps import PAGE, Life, lap
from tests.unit.policies.tiering import paged_tiers

PLANNING = [one for one in managing_names() if one != "fast-only"]
"""All policies that can manage a process, except the one that the simulator does not limit to the
budget."""

MAY_FAIL = ("infeasible", "no placement was found")


@st.composite
def lives(draw: st.DrawFn, stretches: int) -> Life:
    pages = draw(st.sampled_from([8, 16, 40, 64, 100]))
    span = None
    first, last = 0, stretches - 1
    if draw(st.booleans()):
        first = draw(st.integers(0, stretches - 1))
        last = draw(st.integers(first, stretches - 1))
        span = first, last
    used = draw(st.sets(st.integers(first, last), min_size=1, max_size=4))
    if span is not None:
        used |= {first}  # the stretch of the birth writes to the tensor
    written = draw(st.sets(st.sampled_from(sorted(used))))
    if span is not None:
        written |= {first}
    return Life(pages, tuple(sorted(used)), span, tuple(sorted(written)))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    stretches = draw(st.integers(3, 10))
    return lap(stretches, *draw(st.lists(lives(stretches), min_size=1, max_size=7)))


@pytest.mark.parametrize("name", PLANNING)
@settings(max_examples=examples(ci=10, long=200))
@given(
    profile=profiles(),
    share=st.floats(0.02, 0.9),
    reads_per_s=st.sampled_from([10.0, 60.0, 400.0]),
    write_speed=st.sampled_from([0.5, 1.0, 2.5]),
    latency_ns=st.sampled_from([0.0, 2e8]),
)
def test_plans_are_valid_and_no_step_is_shorter_than_the_bound(
    name: str,
    profile: Profile,
    share: float,
    reads_per_s: float,
    write_speed: float,
    latency_ns: float,
) -> None:
    tiers = paged_tiers(reads_per_s, reads_per_s * write_speed, latency_ns)
    budget = max(int(profile.peak_bytes * share), PAGE)
    try:
        found = simulate(profile, policy(name), tiers, budget, steps_max=20)
    except SentinelError as error:
        if any(text in error.message for text in MAY_FAIL):
            return
        raise
    least_s = bound_seconds(profile, tiers, budget)
    assert found.step_seconds >= least_s * (1 - 1e-6)


def test_less_memory_makes_no_bound_shorter() -> None:
    profile = lap(8, Life(64, (0, 4)), Life(64, (1, 6), (1, 6), (1,)), Life(40, (2,), (2, 3), (2,)))
    tiers = paged_tiers(60.0, 150.0)
    found = [bound_seconds(profile, tiers, pages * PAGE) for pages in (10, 60, 110, 170)]
    assert all(more >= less * (1 - 1e-9) for more, less in pairwise(found))
    assert found[-1] == pytest.approx(8.0)
