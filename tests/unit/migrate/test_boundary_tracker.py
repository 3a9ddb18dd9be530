# SPDX-License-Identifier: Apache-2.0
"""When the residency is read, and at which boundaries the mover has something to do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, repeat

import numpy as np
import pytest

from sentineld.migrate.boundary_tracker import REFRESH_STEPS_MAX, BoundaryTracker
from sentineld.migrate.pending import Batch, Pending
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.model.plan import Plan, Space
from sentineld.plan.move_queue import move_times
from sentineld.plan.stall_trial import SETTLING_STEPS, STEPS_PER_BOUNDARY
from sentineld.policies.registry import policy
from tests.unit.migrate.simulated_process import PAGE, STARTS, TIERS, Process, SlowMemory
from tests.unit.workloads import Network, profiled

NETWORK = Network(2, weight_bytes=4 * PAGE, activation_bytes=32 * PAGE, bytes_per_s=1e8)


class Tracked:
    """A tracker of a simulated process that waits at no barrier."""

    def __init__(self, name: str, late: bool = False) -> None:
        """name: the policy that plans the step. late: whether all promotions are late by plan."""
        profile, _ = profiled(NETWORK)
        self.plan: Plan = policy(name).plan(profile, TIERS, int(0.3 * profile.peak_bytes))
        if late:
            self.plan = replace(self.plan, late=self.plan.moves["tier"] == 0)
        self.planned = planned = PlannedStep.of(self.plan, profile)
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

    def next_without_moves(self) -> int | None:
        """The next boundary at which the mover has something to do when the queue is empty."""
        self.tracker.schedule.queue.clear("paused")
        return self.tracker.next_boundary()


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


def state_of(tracker: BoundaryTracker) -> tuple[object, ...]:
    """What a tracker knows: maps, charges, queues and counts."""
    queue = tracker.schedule.queue
    return (
        tracker.schedule.now,
        [one.nodes.tolist() for one in tracker.spaces.maps.values()],
        [(move.offset, move.tier, move.due) for move in queue.demotions],
        [(move.offset, move.tier, move.due) for move in queue.promotions],
        tracker.charge.charged_bytes(),
        tracker.charge.room_bytes(),
        tracker.ledger.totals(),
        tracker.next_boundary(),
    )


def first_drop_moved(tracked: Tracked) -> Batch:
    """A batch of the first page that the step drops."""
    offset, due = int(tracked.planned.step.drops["offset"][0]), tracked.tracker.schedule.now
    move = Pending(Space.ARENA, offset, PAGE, 1, due, due + 1, due + 1, "plan")
    return Batch(1, ((move, np.array([offset // PAGE])),))


@pytest.mark.parametrize("stride", [1, 7, 37])  # the step has 16 boundaries
@pytest.mark.parametrize("name", ["static", "sentinel", "tiertrain"])
def test_quiet_boundaries_are_passed_at_once(
    name: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is the same as if each boundary were passed. Now and then, a move of a page that
    the step drops ends, and the plan is followed anew."""
    tracked, one_by_one = Tracked(name), Tracked(name)
    monkeypatch.setattr(one_by_one.tracker, "_pass_quiet_boundaries", lambda target: False)
    for passed, position in enumerate(range(16, 60 * 16, stride)):
        for each in (tracked, one_by_one):
            each.process.run(float(each.process.times_ns.sum()) / 16 * stride)
            tracker = each.tracker
            if passed % 5 == 0 and len(each.planned.step.drops):
                tracker.moved(first_drop_moved(each))
            tracker.follow(tracker.schedule.position(position), restart=passed % 20 == 19)
        assert state_of(tracked.tracker) == state_of(one_by_one.tracker)


@pytest.mark.parametrize("name", ["static", "tiertrain"])
def test_quiet_boundaries_take_no_pass_of_their_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = Tracked(name)
    tracker, charge, begun = tracked.tracker, tracked.tracker.charge, []
    tracked.reads(10)  # the residency is not read in the next two steps
    tracker.follow(11 << 32, restart=False)
    begin = charge.begin
    monkeypatch.setattr(charge, "begin", lambda now: (begun.append(now), begin(now)))
    tracker.follow(12 << 32, restart=False)
    planned = tracked.planned
    times = move_times(tracked.plan.moves, 16, planned.useful_until, planned.ahead)
    wanted = {0} | charge.changing() | {one.begin for one in times}
    assert begun == [now for now in range(11 * 16 + 1, 12 * 16 + 1) if now % 16 in wanted]
    assert len(wanted) < 16


@pytest.mark.parametrize("tier", [0, 1])
def test_while_a_move_is_queued_each_boundary_matters(tier: int) -> None:
    tracked = Tracked("static")
    tracked.reads(2)
    assert tracked.tracker.next_boundary() is not None
    due = tracked.tracker.schedule.now
    move = Pending(Space.HEAP, 0, PAGE, tier, due, due + 1, due + 1, "heal")
    tracked.tracker.schedule.queue.add(move)
    assert tracked.tracker.next_boundary() is None
    assert tracked.next_without_moves() is not None


@pytest.mark.parametrize("name", ["static", "sentinel"])
def test_without_queued_moves_awaited_boundaries_and_beginnings_of_moves_matter(name: str) -> None:
    """The first boundary of each step matters, too."""
    tracked = Tracked(name)
    plan, planned, count = tracked.plan, tracked.planned, tracked.tracker.schedule.boundary_count
    times = move_times(plan.moves, count, planned.useful_until, planned.ahead)
    waits = plan.layout.waits
    wanted = {0, *waits[waits >= 0].tolist(), *(one.begin for one in times)}
    assert not len(plan.late)
    assert (len(wanted) > 4) == (name == "sentinel")
    for boundary in range(count):
        tracked.tracker.follow(3 << 32 | boundary, restart=False)
        # The search goes on in the next step, because after the last of these boundaries, the next
        # one is that step's first boundary.
        following = range(3 * count + boundary + 1, 4 * count + 1)
        assert tracked.next_without_moves() == next(b for b in following if b % count in wanted)


def test_a_move_of_a_page_that_is_dropped_meanwhile_makes_each_boundary_matter() -> None:
    """Until the stretch ends, the mover can't know on which tier the page is then."""
    tracked = Tracked("sentinel")
    tracker = tracked.tracker
    drop = tracked.planned.step.drops[0]
    stretch, page = int(drop["stretch"]), int(drop["offset"]) // PAGE
    tracker.follow(1 << 32 | stretch, restart=False)
    assert tracked.next_without_moves() is not None
    due = tracker.schedule.now
    move = Pending(Space.ARENA, page * PAGE, PAGE, 1, due, due + 1, due + 1, "plan")
    tracker.moved(Batch(1, ((move, np.array([page])),)))
    tracker.follow(1 << 32 | stretch, restart=False)
    assert tracked.next_without_moves() is None
    tracker.follow(1 << 32 | (stretch + 1), restart=False)
    assert tracked.next_without_moves() is not None


def test_until_all_stalls_are_decided_each_boundary_matters() -> None:
    tracked = Tracked("sentinel", late=True)
    trial = tracked.tracker.trial
    assert trial.decisions.undecided > 0
    assert tracked.next_without_moves() is None
    tracked.reads(SETTLING_STEPS + (STEPS_PER_BOUNDARY + 1) * (trial.decisions.undecided + 1))
    assert trial.decisions.undecided == 0
    assert tracked.next_without_moves() is not None
