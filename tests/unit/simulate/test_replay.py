# SPDX-License-Identifier: Apache-2.0
"""A handmade plan with hand-computed results: residency, time, moves, waits and late moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tier, Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.stall_trial import SETTLING_STEPS, Decisions
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.script import scripts
from sentineld.simulate.world import World
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, late_plan, with_layout

READ_NS, WRITE_NS = 0.375, 0.75
PAGE_NS = (READ_NS + WRITE_NS / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written, as in large_profile().
With the bandwidths of tiers(), a slow byte takes 1/2 - 1/8 = 0.375 ns more to read and 1 - 1/4 =
0.75 ns more to write."""
STATE = 2 * LARGE
"""Pages of the half of the state that the plan moves."""


def tiers(pages_per_s: float) -> Tiers:
    fast, slow = Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)
    return Tiers((fast, slow), pages_per_s * PAGE, "toy")


def replayed(
    plan: Plan, pages_per_s: float, steps: int = 4, capacity: int | None = 7 * LARGE
) -> tuple[Replay, list[Step]]:
    profile, timing = large_profile(), timing_of(tiers(pages_per_s))
    made = scripts(plan, profile, timing)
    replay = Replay(
        made,
        World(
            made.cells,
            capacity,
            timing.promote_ns_per_byte * PAGE,
            timing.demote_ns_per_byte * PAGE,
        ),
    )
    replay.begin()
    replay.world.run(0.0)
    return replay, [replay.step() for _ in range(steps)]


def test_a_steady_step_by_hand() -> None:
    # Slow memory serves the gradient in stretches 2 and 3, and in stretch 3 also the half of the
    # state that never moves. The other half is demoted in stretch 0 and promoted before stretch 3.
    _, steps = replayed(large_plan(), 1000.0)
    last = steps[-1]
    assert last.ns == pytest.approx(4e9 + 6 * LARGE * PAGE_NS, abs=2)
    assert last.slow_ns == pytest.approx(6 * LARGE * PAGE_NS, abs=2)
    assert (last.counts.promoted_pages, last.counts.demoted_pages) == (STATE, STATE)
    assert last.counts.peak_pages == 7 * LARGE - 1  # the scratch fills 63 pages
    assert last.counts.late_moves == 0
    assert last.counts.stall_ns == 0


def test_births_of_dropped_pages_take_time() -> None:
    # Of scratch, activation and gradient, only the activation's pages are dropped.
    profile = large_profile()
    timing = timing_of(replace(tiers(1000.0), birth_ns_per_byte=0.5))
    made = scripts(large_plan(), profile, timing)
    replay = Replay(
        made,
        World(
            made.cells,
            7 * LARGE,
            timing.promote_ns_per_byte * PAGE,
            timing.demote_ns_per_byte * PAGE,
        ),
    )
    replay.begin()
    first, *_, last = [replay.step() for _ in range(4)]
    _, free = replayed(large_plan(), 1000.0)
    assert (first.counts.born_pages, last.counts.born_pages) == (5 * LARGE - 1, 2 * LARGE)
    assert last.slow_ns == free[-1].slow_ns
    assert last.ns == pytest.approx(free[-1].ns + 2 * LARGE * PAGE * 0.5, abs=2)


def test_a_late_promotion_leaves_the_rest_slow() -> None:
    # A promotion of 128 pages takes 1.5 s. The stretch before the use of these pages takes 1 s plus
    # the cost of the slow gradient, so 85 pages arrive in time. The page that is in flight at the
    # end of this stretch is finished, too; the moves of the other pages expire. The demotion of the
    # 86 promoted pages takes 8 ms longer than stretch 0, so it is late, too.
    _, steps = replayed(large_plan(), STATE / 1.5)
    last = steps[-1]
    came = int((1e9 + 2 * LARGE * PAGE_NS) // (1.5e9 / STATE))
    assert came == 85
    assert last.slow_ns == pytest.approx((6 * LARGE + STATE - came) * PAGE_NS, abs=2)
    assert (last.counts.promoted_pages, last.counts.demoted_pages) == (came + 1, came + 1)
    assert last.counts.late_moves == 2


def test_a_boundary_waits_for_demotions() -> None:
    waits = np.array([-1, 0, -1, -1], np.int32)
    _, steps = replayed(with_layout(large_plan(), waits=waits), STATE / 1.5)
    # The mover begins the demotion as soon as stretch 0 begins. Stretch 0 takes 1 s, and boundary 1
    # waits for the rest of the demotion.
    demoted = steps[-1].counts.demoted_pages
    assert steps[-1].counts.stall_ns == pytest.approx(demoted * 1.5e9 / STATE - 1e9, abs=10)
    assert steps[-1].ns == pytest.approx(4e9 + steps[-1].slow_ns + steps[-1].counts.stall_ns, abs=2)


@pytest.mark.parametrize(("used", "stall_s"), [(3, 0.0), (0, 0.5)])
def test_an_idle_mover_demotes_ahead_of_time(used: int, stall_s: float) -> None:
    # The demotion at boundary 1 takes a second, and boundary 2 waits for its end. Stretch 1 takes
    # half a second less than profiled. If the state is used in stretch 0, boundary 2 waits for the
    # remaining half second of the demotion. If the state is used in stretch 3, its demotion can
    # begin in stretch 0, and no time is lost.
    plan = with_layout(large_plan(), waits=np.array([-1, -1, 1, -1], np.int32))
    plan.moves["boundary"][0], plan.moves["deadline"][0] = 1, 2
    profile, timing = large_profile(), timing_of(tiers(STATE))
    profile.accesses["stretch"][profile.accesses["tensor"] == 3] = used
    made = scripts(plan, profile, timing)
    replay = Replay(
        made,
        World(
            made.cells,
            7 * LARGE,
            timing.promote_ns_per_byte * PAGE,
            timing.demote_ns_per_byte * PAGE,
        ),
    )
    replay.begin()
    last = [replay.step(np.array([1.0, 0.5, 1.0, 1.0])) for _ in range(6)][-1]
    assert last.counts.demoted_pages == last.counts.promoted_pages == STATE
    assert last.counts.stall_ns == pytest.approx(stall_s * 1e9, rel=0.02, abs=2)


def test_without_migration_no_boundary_waits() -> None:
    waits = np.array([-1, 0, -1, -1], np.int32)
    _, steps = replayed(with_layout(large_plan(), waits=waits), 0.0)
    assert steps[-1].counts.stall_ns == 0
    assert steps[-1].counts.promoted_pages == 0


def test_a_birth_without_room_is_slow() -> None:
    # In units of 64 pages: the state (4) and the parameter (2) are placed first. With a capacity of
    # 7, one of the activation's two units is born fast; with a capacity of 6, none is.
    _, steps = replayed(
        replace(large_plan(), moves=large_plan().moves[:0]), 0.0, capacity=7 * LARGE
    )
    plan = replace(large_plan(), moves=large_plan().moves[:0])
    _, tight = replayed(plan, 0.0, capacity=6 * LARGE)
    assert tight[-1].slow_ns > steps[-1].slow_ns
    assert tight[-1].counts.peak_pages == 6 * LARGE


@st.composite
def some_moves(draw: st.DrawFn) -> np.ndarray:
    """Random moves of pages of the heap (state and parameter) and of the arena."""
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        space = draw(st.sampled_from([Space.ARENA, Space.HEAP]))
        end = 5 if space == Space.ARENA else 6
        first = draw(st.integers(0, end * LARGE - 1))
        pages = draw(st.integers(1, end * LARGE - first))
        boundary = draw(st.integers(0, 3))
        tensor = 0 if space == Space.ARENA else 3
        rows.append(
            (
                boundary,
                draw(st.integers(0, 3)),
                tensor,
                space,
                draw(st.integers(0, 1)),
                first * PAGE,
                pages * PAGE,
            )
        )
    moves = np.array(rows, MOVE_DTYPE)
    return np.sort(moves, order=["boundary"])


@given(some_moves(), st.integers(1, 12 * LARGE), st.floats(10.0, 1e4), st.booleans())
def test_any_plan_keeps_the_invariants_of_the_world(
    moves: np.ndarray, capacity: int, pages_per_s: float, waits: bool
) -> None:
    profile = large_profile()
    plan = replace(large_plan(), moves=moves)
    demoting = moves["boundary"][moves["tier"] == 1]
    if waits and len(demoting):
        boundary = int(demoting[0])
        wait = np.full(4, -1, np.int32)
        wait[(boundary + 1) % 4] = boundary
        plan = with_layout(plan, waits=wait)
    replay, steps = replayed(plan, pages_per_s, 12, capacity)
    for step in steps:
        assert step.counts.peak_pages <= capacity
        assert step.ns >= 4e9
        assert step.ns == pytest.approx(4e9 + step.slow_ns + step.counts.stall_ns, abs=2)
        moved = step.counts.promoted_pages + step.counts.demoted_pages
        assert moved <= step.ns * pages_per_s / 1e9 + 1
    world = replay.world
    assert world.fast_pages == int(world.fast.sum())
    there = (world.fast + world.slow) > 0
    assert np.array_equal((world.fast + world.slow)[there], world.cells.pages[there])
    # Take the mean of many steps, because moves that began before these steps can shorten the first
    # step.
    steady = float(np.mean([step.ns for step in steps[2:]])) / 1e9
    slack = 4 * LARGE * PAGE_NS * 4 / 10 / 1e9
    assert bound(profile, pages_per_s, capacity) <= steady + slack


def bound(profile: Profile, pages_per_s: float, capacity: int) -> float:
    return bound_seconds(profile, tiers(pages_per_s), capacity * PAGE)


def test_the_process_stalls_for_a_late_promotion_in_one_step_of_its_trial() -> None:
    # Half of the state is demoted after its use in stretch 3 and promoted before its use in the
    # next step. Its 128 pages take 1.5 s to promote; the stretch before the use takes 1 s plus the
    # cost of the slow gradient.
    replay, steps = replayed(late_plan(large_plan()), STATE / 1.5, steps=6)
    tried = steps[SETTLING_STEPS]
    waited = 1.5e9 - 1e9 - 2 * LARGE * PAGE_NS
    assert tried.counts.stall_ns == pytest.approx(waited, rel=0.05)
    assert tried.counts.promoted_pages == STATE
    assert tried.ns == pytest.approx(4e9 + tried.slow_ns + tried.counts.stall_ns, abs=2)
    # Slow accesses to the late pages take less time than the stall, so the trial decides against
    # stalling.
    assert replay.trial.decisions == Decisions(stall=0, leave=1, undecided=0)
    for step in (*steps[:SETTLING_STEPS], *steps[SETTLING_STEPS + 1 :]):
        assert step.counts.stall_ns == 0
        assert step.counts.promoted_pages < STATE


def test_the_process_does_not_stall_without_room() -> None:
    # The pool and the parameter leave no room for the half of the state whose promotion is late.
    plan = late_plan(large_plan())
    _, steps = replayed(plan, STATE / 1.5, steps=SETTLING_STEPS + 1, capacity=3 * LARGE - 1)
    assert steps[-1].counts.promoted_pages < STATE
    assert steps[-1].counts.stall_ns == 0
