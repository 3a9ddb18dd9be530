# SPDX-License-Identifier: Apache-2.0
"""A mover that is slower than its plan assumes: the process waits at the plan's barriers, and no
step exceeds the budget.

The process is simulated. It keeps running while the mover calls move_pages(). So a call can move
pages whose tensor has died since the call began, or on which the next tensor has been born since
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, repeat

import numpy as np
import pytest

from sentineld.migrate.mover import Mover
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.residency import ABSENT as ABSENT_TIER
from sentineld.policies.registry import policy
from tests.unit.migrate.simulated_process import (
    ABSENT,
    PAGE,
    STARTS,
    TIERS,
    Process,
    SlowMemory,
    pages_of,
)
from tests.unit.policies.random_profiles import random_profile
from tests.unit.workloads import Network, profiled

STEPS = 4
CALL_STRETCH_NS = 10_000_000
CALL_SEEDS = 20
NETWORK = Network(2, weight_bytes=4 * PAGE, activation_bytes=32 * PAGE, bytes_per_s=1e8)


def entered(
    plan: Plan, profile: Profile, call_ns: Iterator[float]
) -> tuple[Mover, Process, SlowMemory]:
    """A mover that has entered the plan, its process, and the process's memory."""
    planned = PlannedStep.of(plan, profile)
    process = Process(plan, planned, profile)
    memory = SlowMemory(process, call_ns)
    spaces = {space: (STARTS[space], len(nodes) * PAGE) for space, nodes in process.nodes.items()}
    mover = Mover(
        TIERS,
        planned,
        ProcessPorts(
            pid=1,
            memory=memory,
            spaces=spaces,
            publish=process.publish,
            position=lambda: process.position,
        ),
        plan.budget_bytes,
    )
    mover.enter()
    mover.begin(process.position)
    return mover, process, memory


def most_fast_pages(
    plan: Plan,
    profile: Profile,
    call_ns: Iterator[float],
    after: Callable[[Mover, Process], None] = lambda mover, process: None,
) -> int:
    """Simulate STEPS steps; return the peak number of fast pages after the first step.

    after: called whenever the mover has nothing to do for the moment.
    """
    mover, process, _ = entered(plan, profile, call_ns)
    idle_ns = process.times_ns.mean() / 20
    while process.step < STEPS:
        mover.work()
        after(mover, process)
        process.run(idle_ns)
        mover.notify(process.position)
    return process.most_pages


@pytest.mark.parametrize("stretches_per_call", [0.3, 3.0, 8.0])
@pytest.mark.parametrize("name", ["sentinel", "auto", "autotm", "static"])
def test_no_step_exceeds_the_budget(name: str, stretches_per_call: float) -> None:
    profile, _ = profiled(NETWORK)
    budget = int(0.187 * profile.peak_bytes)
    plan = policy(name).plan(profile, TIERS, budget)
    call_ns = stretches_per_call * float(profile.stretches["time_ns"].mean())
    assert most_fast_pages(plan, profile, repeat(call_ns)) * PAGE <= budget


def no_fast_page_is_overlooked(mover: Mover, process: Process) -> None:
    """Check that the mover counts all fast pages. It may also count pages that are not born yet."""
    fast = sum(int(np.count_nonzero(nodes == 0)) for nodes in process.nodes.values())
    assert mover.by_tier(barriers_hold=False)[0] >= fast * PAGE


@pytest.mark.parametrize(
    ("seed", "name", "tensors", "stretches", "share"),
    [(16, "sentinel", 25, 16, 0.1), (104, "sentinel+spill", 16, 12, 0.4)],
)
def test_pages_that_are_born_during_a_call_are_not_overlooked(
    seed: int, name: str, tensors: int, stretches: int, share: float
) -> None:
    """About one call in seven takes as long as seven stretches. During such a call, tensors whose
    pages it moves die, and other tensors are born on these pages."""
    profile = random_profile(seed, tensors, stretches)
    table = profile.stretches.copy()
    table["time_ns"] = CALL_STRETCH_NS
    profile = replace(profile, stretches=table)
    budget = int(share * profile.peak_bytes)
    plan = policy(name).plan(profile, TIERS, budget)
    assert len(plan.moves)
    for number in range(CALL_SEEDS):
        random = np.random.default_rng(number)
        calls = (float(random.choice([0.03, 0.3, 7.0], p=[0.7, 0.15, 0.15])) for _ in count())
        most_fast_pages(
            plan, profile, (CALL_STRETCH_NS * one for one in calls), no_fast_page_is_overlooked
        )


@pytest.mark.parametrize("steps", [1.2, 1.9, 2.0, 2.05, 5.3])
@pytest.mark.parametrize("name", ["sentinel", "auto"])
def test_a_mover_that_falls_behind_by_steps_keeps_the_map(name: str, steps: float) -> None:
    """The process does not wait at barriers. The mover looks at it only every `steps` steps. Its
    map stays right, although it does not read the residency each time."""
    profile, _ = profiled(NETWORK)
    plan = policy(name).plan(profile, TIERS, int(0.3 * profile.peak_bytes))
    mover, process, memory = entered(plan, profile, repeat(0.0))
    process.waits = np.full_like(process.waits, -1)
    mover.work()
    rounds = 40
    for _ in range(rounds):
        process.run(steps * float(process.times_ns.sum()))
        mover.notify(process.position)
        mover.work()
        map_is_right(mover, process)
    # With a whole number of steps, the mover always meets the same boundary, where few moves begin.
    assert steps == 2.0 or any(one.reason == "plan" for one in mover.ledger.totals())
    # The residency is read after 1, 2, 4, 8, 16, 32 ... steps.
    assert memory.reads <= 5 + rounds * steps / 16


def map_is_right(mover: Mover, process: Process) -> None:
    """Check the tier of each page, except that births of the present stretch may be in the map
    already, and its drops not yet."""
    found = mover.page_tiers(barriers_hold=False)
    assert found.stretch == process.stretch
    turnover = np.zeros(len(process.nodes[Space.ARENA]), np.bool_)
    for event in process.events[found.stretch]:
        turnover[pages_of(event)] = True
    for space, nodes in process.nodes.items():
        differs = np.where(nodes == ABSENT, np.uint8(ABSENT_TIER), nodes) != found.tiers[space]
        assert not differs[~turnover if space == Space.ARENA else ...].any()
