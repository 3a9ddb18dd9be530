# SPDX-License-Identifier: Apache-2.0
"""Clean pages in the linear program: the demotion of a page that was only read takes no time."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.model.profile import Profile
from sentineld.model.timing import timing_of
from sentineld.policies.lp.clean import clean_segments, demoted_clean
from sentineld.policies.lp.groups import Groups, groups_of
from sentineld.policies.lp.problem import Limits, Solution, changes_of
from sentineld.policies.lp.program import solve
from tests.unit.policies.rivals.laps import PAGE, Life, lap
from tests.unit.policies.tiering import paged_tiers

READ_NS, WRITE_NS = 2e9 / 64, 3e9 / 64
"""Times to read and to write a page, in ns. A stretch takes 1 s, so reading 64 pages takes 2
stretches and writing them takes 3 stretches."""


def solved(profile: Profile, pages: int, clean: bool) -> tuple[Groups, Solution]:
    timing = timing_of(paged_tiers(1e9 / READ_NS, 1e9 / WRITE_NS))
    groups = groups_of(profile, timing)
    times = profile.stretches["time_ns"].astype(np.float64)
    limits = Limits(
        times, timing.promote_ns_per_byte * PAGE, timing.demote_ns_per_byte * PAGE, pages
    )
    which = np.full(len(groups.pages), clean)
    found = solve(groups, limits, changes_of(groups), "the test", which)
    assert found is not None
    return groups, found


def test_segments_are_clean_unless_they_write_or_begin_with_a_birth() -> None:
    segment = np.array([0, 0, 1, 1, 2])
    writes = np.array([False, False, False, True, False])
    assert clean_segments(segment, writes, persistent=True).tolist() == [0, 2]
    assert clean_segments(segment, writes, persistent=False).tolist() == [2]
    # A segment is the part of a group's lifetime between two changes of its tier. If there is only
    # one segment, the group never changes its tier, so no page leaves memory.
    assert not len(clean_segments(np.zeros(5, np.int64), writes & False, persistent=True))


@pytest.mark.parametrize("written", [(), (0,), (0, 6)])
def test_pages_that_are_only_read_move_without_writes(written: tuple[int, ...]) -> None:
    # Memory has room for one of the two tensors, which are used alternately. The step has 12
    # stretches. The two fetches together take as long as 4 stretches, and each write of a changed
    # tensor takes as long as 3 stretches.
    profile = lap(
        12, Life(64, (0,), written_in=written[:1]), Life(64, (6,), written_in=written[1:])
    )
    step_ns = [solved(profile, 64, clean)[1].step_ns for clean in (False, True)]
    fetches, writes = 4e9, 3e9 * len(written)
    # Without clean pages, both tensors are written. Their moves take 10 of the 12 stretches and
    # have to lie between the uses, so the step may take longer than 12 stretches.
    assert step_ns[1] <= step_ns[0] + 1
    assert 12e9 - 1 <= step_ns[1] <= max(12e9, fetches + writes) * 1.1


def test_a_schedule_that_can_t_write_in_time_needs_clean_pages() -> None:
    # A step of 6 stretches has time for two fetches (4 stretches), but not for two fetches and two
    # writes (10 stretches).
    profile = lap(6, Life(64, (0,)), Life(64, (3,)))
    dirty, clean = (solved(profile, 64, one)[1] for one in (False, True))
    assert clean.step_ns == pytest.approx(6e9, rel=1e-6)
    assert dirty.step_ns > 6.5e9
    groups = solved(profile, 64, True)[0]
    assert demoted_clean(groups, clean.fast_pages).all()


def test_a_demotion_after_a_write_is_not_clean() -> None:
    profile = lap(6, Life(64, (0,), written_in=(0,)), Life(64, (3,), written_in=(3,)))
    groups, found = solved(profile, 64, True)
    assert not demoted_clean(groups, found.fast_pages).any()
    same = solved(profile, 64, False)[1]
    assert found.step_ns == pytest.approx(same.step_ns, rel=1e-6)
