# SPDX-License-Identifier: Apache-2.0
"""On paged tiers, no plan beats the bound, even if late promotions keep fetched pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import policy
from sentineld.simulate.replay import Replay
from sentineld.simulate.script import scripts
from sentineld.simulate.world import World
from tests.unit.plan.toys import PAGE, move
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.policies.tiering import paged_tiers

STEPS_MAX = 30
Move = tuple[int, ...]


def step_s(profile: Profile, tiers: Tiers, pages: int, moves: Sequence[Move]) -> float | None:
    """The mean step time once the steps repeat under a plan with all pages slow at first and these
    moves. None: the steps do not repeat within STEPS_MAX steps.

    moves: their fields are those of toys.move().
    """
    plan: Plan = policy("slow-only").plan(profile, tiers, pages * PAGE)
    plan = replace(plan, moves=np.array(sorted(moves), MOVE_DTYPE))
    timing = timing_of(tiers)
    made = scripts(plan, profile, timing)
    times = timing.promote_ns_per_byte * PAGE, timing.demote_ns_per_byte * PAGE
    replay = Replay(made, World(made.cells, pages, *times, paged=True))
    replay.begin()
    replay.world.run(0.0)
    found: list[float] = []
    seen: dict[bytes, int] = {}
    for number in range(STEPS_MAX):
        if (before := seen.setdefault(replay.world.state(), number)) < number:
            return float(np.mean(found[before:])) / 1e9
        found.append(replay.step().ns)
    return None


def with_touched(profile: Profile, shares: Sequence[float]) -> Profile:
    """The profile, with accesses that touch only these shares of their tensors. shares: one value
    for each access row."""
    rows = profile.accesses.copy()
    for field in ("bytes_read", "bytes_written"):
        rows[field] = np.ceil(rows[field] / PAGE * shares) * PAGE
    return replace(profile, accesses=rows)


def test_a_read_can_serve_an_access_and_a_promotion() -> None:
    # The file is read at 64 pages/s; fast memory has 64 pages, and so have both tensors. Stretch 0
    # uses tensor 0, stretch 2 a half of tensor 1, and stretch 3 all of tensor 1. Stretch 1 is too
    # short for moves, except for those of clean pages, and stretch 4 is long. So stretch 2 fetches
    # 32 pages by faults, in 0.5 s. The promotion of tensor 1 keeps these pages and moves the other
    # 32 pages while stretch 2 computes for 0.5 s.
    tiers = paged_tiers(64.0, 64.0)
    profile = lap(5, Life(64, (0,)), Life(64, (2, 3)))
    stretches = profile.stretches.copy()
    stretches["time_ns"] = np.array([1.0, 0.001, 0.5, 1.0, 10.0]) * 1e9
    profile = with_touched(replace(profile, stretches=stretches), [1.0, 0.5, 1.0])
    moves = [
        move(1, 2, 0, Space.HEAP, 1, 0, 64),
        move(1, 3, 1, Space.HEAP, 0, 64, 64),
        move(4, 0, 1, Space.HEAP, 1, 64, 64),
        move(4, 0, 0, Space.HEAP, 0, 0, 64),
    ]
    assert step_s(profile, tiers, 64, moves) == pytest.approx(13.001, abs=1e-3)
    assert bound_seconds(profile, tiers, 64 * PAGE) == pytest.approx(13.001, rel=2e-3)


@settings(deadline=None)
@given(st.data())
def test_no_plan_beats_the_bound(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5), "stretches")
    stretch = st.integers(0, count - 1)
    lives = [
        Life(pages, tuple(sorted(uses)), written_in=tuple(written & uses))
        for pages, uses, written in data.draw(
            st.lists(
                st.tuples(
                    st.integers(16, 64),
                    st.sets(stretch, min_size=1),
                    st.sets(stretch, max_size=1),
                ),
                min_size=1,
                max_size=4,
            ),
            "tensors",
        )
    ]
    profile = lap(count, *lives)
    stretches = profile.stretches.copy()
    stretches["time_ns"] = data.draw(
        st.lists(st.integers(1_000, 2_000_000_000), min_size=count, max_size=count), "times"
    )
    many = len(profile.accesses)
    shares = data.draw(st.lists(st.floats(0.05, 1.0), min_size=many, max_size=many), "touched")
    profile = with_touched(replace(profile, stretches=stretches), shares)
    tiers = paged_tiers(data.draw(st.floats(16.0, 256.0)), data.draw(st.floats(16.0, 256.0)))
    pages = data.draw(st.integers(1, sum(life.pages for life in lives)), "fast pages")
    starts = np.cumsum([life.pages for life in lives]) - [life.pages for life in lives]
    moves: list[Move] = []
    for at, life in enumerate(lives):
        for tier in data.draw(st.lists(st.integers(0, 1), max_size=4), f"moves of tensor {at}"):
            boundary, first = data.draw(stretch), data.draw(st.integers(0, life.pages - 1))
            length = data.draw(st.integers(1, life.pages - first))
            deadline = (boundary + 1) % count
            moves.append(
                move(boundary, deadline, at, Space.HEAP, tier, int(starts[at]) + first, length)
            )
    found_s = step_s(profile, tiers, pages, moves)
    assume(found_s is not None)
    assert found_s is not None
    assert bound_seconds(profile, tiers, pages * PAGE) <= found_s * (1 + 1e-6)
