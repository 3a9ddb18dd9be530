# SPDX-License-Identifier: Apache-2.0
"""When the residency is read, and at which boundaries the mover has something to do."""

from __future__ import annotations

from itertools import pairwise, repeat

import numpy as np
import pytest

from sentineld.migrate.boundary_tracker import REFRESH_STEPS_MAX, BoundaryTracker
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.model.plan import Plan
from sentineld.policies.registry import policy
from tests.unit.migrate.simulated_process import PAGE, STARTS, TIERS, Process, SlowMemory
from tests.unit.workloads import Network, profiled

NETWORK = Network(2, weight_bytes=4 * PAGE, activation_bytes=32 * PAGE, bytes_per_s=1e8)


class Tracked:
    """A tracker of a simulated process that waits at no barrier."""

    def __init__(self, name: str) -> None:
        profile, _ = profiled(NETWORK)
        self.plan: Plan = policy(name).plan(profile, TIERS, int(0.3 * profile.peak_bytes))
        planned = PlannedStep.of(self.plan, profile)
        self.process = Process(self.plan, planned, profile)
        self.process.waits = np.full_like(self.process.waits, -1)
        self.memory = SlowMemory(self.process, repeat(0.0))
        spaces = {
            space: (STARTS[space], len(nodes) * PAGE) for space, nodes in self.process.nodes.items()
        }
        ports = ProcessPorts(1, self.memory, spaces, lambda position: None)
        self.tracker = BoundaryTracker(TIERS, planned, ports, self.plan.budget_bytes, PAGE)
        self.tracker.follow(self.process.position, restart=True)

    def reads(self, steps: int) -> list[int]:
        """Run steps; return the steps in which the residency is read."""
        found = []
        for _ in range(steps):
            self.process.run(float(self.process.times_ns.sum()))
            before = self.memory.reads
            self.tracker.follow(self.process.position, restart=False)
            found += [self.process.step] * (self.memory.reads - before)
        return found


def test_reads_of_the_residency_are_further_and_further_apart() -> None:
    tracked = Tracked("static")
    assert tracked.memory.reads == 1
    found = [0, *tracked.reads(80)]
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert gaps == [1, 2, 4, 8, *[REFRESH_STEPS_MAX] * 4]


def test_a_restart_reads_the_residency_and_begins_with_short_gaps_again() -> None:
    tracked = Tracked("static")
    tracked.reads(20)
    before = tracked.memory.reads
    tracked.tracker.follow(tracked.process.position, restart=True)
    assert tracked.memory.reads == before + 1
    assert tracked.reads(3) == [21, 23]


def test_a_requested_read_waits_until_no_page_is_watched() -> None:
    class Backend:
        def disarm(self, start: int, length_bytes: int) -> None:
            raise AssertionError

        def arm(self, start: int, length_bytes: int) -> None:
            raise AssertionError

    tracked = Tracked("static")
    tracked.reads(16)
    tracked.tracker.refresh()
    tracked.tracker.watched.begin(Backend(), lambda: None)
    assert tracked.reads(3) == []
    tracked.tracker.watched.end(lambda: None)
    assert tracked.reads(3) == [20]


@pytest.mark.parametrize("name", ["static", "sentinel"])
def test_the_mover_has_something_to_do_while_moves_are_queued(name: str) -> None:
    tracked = Tracked(name)
    schedule = tracked.tracker.schedule
    tracked.reads(2)
    if name == "sentinel":
        assert schedule.queue.demotions or schedule.queue.promotions
        assert tracked.tracker.next_boundary() is None
        schedule.queue.clear("paused")
    begins = set(tracked.plan.moves["boundary"].tolist())
    found = tracked.tracker.next_boundary()
    assert found is not None
    assert (
        schedule.now
        < found
        <= (schedule.now // schedule.boundary_count + 1) * (schedule.boundary_count)
    )
    assert name == "sentinel" or (found % schedule.boundary_count == 0 and not begins)
