# SPDX-License-Identifier: Apache-2.0
"""A process follows one plan after another. It begins to follow a plan when it takes the plan's
layout."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sentineld.config import Config
from sentineld.machine.machine import Machine
from sentineld.plan.correct import WINDOW_STEPS
from sentineld.plan.slack import with_slack
from sentineld.profile.sizes import Sizes
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.plans import entering
from sentineld.session.plans.following import Following
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.toyprocess import FAST, SLOW, ToyPages, ToySubstrate, toy_linked
from tests.unit.waiting import wait

SHAPE = Shape(1, "toy")
PLAN = replace(toy_plan(), policy="sentinel")
PLANNED = Planned(SHAPE, toy_profile(), toy_profile(), PLAN, 7 * PAGE, 0.5)
LAST = 0xFFFFFFFF
BROUGHT = ("promote", "initial", "moved")


class Process:
    """A process that runs the toy's steps, together with its session's plans."""

    def __init__(self, shared_fast: str = "") -> None:
        self.linked, self.pages = toy_linked(), ToyPages()
        link = self.linked.link
        substrate = ToySubstrate(self.pages)
        config = Config(huge_pages="off", shared_fast=shared_fast)
        self.machine = machine = Machine(config, substrate, two_tiers(1e12), [])
        self.inbox = Inbox(link, Observing(link, 1024))
        self.ended: list[str] = []
        self.following = Following(link, machine, self.inbox, self.ended.append)
        self.following.begin()

    def send(self, planned: Planned = PLANNED, what: str = "the plan") -> None:
        self.following.prepare(planned, what)
        self.following.send()

    def take_layout(self) -> None:
        self.inbox.take({"type": "layout", "layout_id": self.inbox.layout_id, "ok": True})

    def enter(self, planned: Planned = PLANNED) -> None:
        self.send(planned)
        self.take_layout()
        assert self.following.enter()

    def moved_bytes(self) -> int:
        return sum(self.following.moves().moved_by_entry().values())

    def moves_done(self) -> int:
        return int(self.linked.writer.header["moves_done"][0])

    def close(self) -> None:
        self.following.stop()
        self.linked.close()
        assert not self.ended


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.close()


def test_a_plan_is_followed_once_its_layout_is_taken(process: Process) -> None:
    following = process.following
    process.send()
    assert following.enter() is None
    assert (following.planned, following.managed) == (PLANNED, None)
    process.take_layout()
    assert following.enter() == "the plan is live, budget 28.0 KiB"
    assert following.managed is not None
    wait(lambda: process.pages.heap[0] == SLOW)  # boundary 0 demotes half of the state


def test_a_live_plan_is_followed_until_the_next_ones_layout_is_taken(process: Process) -> None:
    process.enter()
    first = process.following.managed
    after = replace(PLANNED, budget_bytes=8 * PAGE)
    process.send(after, "the corrected plan")
    assert process.following.enter() is None
    assert process.following.managed is first
    wait(lambda: int(process.linked.writer.header["wake_position"][0]) > 10 << 32)
    process.take_layout()
    assert process.following.enter() == "the corrected plan is live, budget 32.0 KiB"
    assert process.following.managed is not first
    assert len(process.following.shapes) == 1


def test_a_process_may_take_a_layout_late(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example after a long evaluation."""
    assert not process.following.overdue()
    process.send()
    assert process.following.enter() is None
    assert not process.following.overdue()
    monkeypatch.setattr(entering, "LAYOUT_WAIT_S", -1.0)
    process.send()
    assert process.following.enter() is None
    assert process.following.overdue()
    process.take_layout()
    assert not process.following.overdue()
    assert process.following.enter() == "the plan is live, budget 28.0 KiB"


def test_what_was_moved_never_falls(process: Process) -> None:
    seen, stop = [0], threading.Event()

    def read() -> None:
        while not stop.wait(0.0005):
            seen.append(process.moved_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(10):
            before = process.moved_bytes()
            process.pages.heap[0] = FAST
            process.enter()
            wait(lambda before=before: process.moved_bytes() > before)
    finally:
        stop.set()
        reader.join()
    assert seen == sorted(seen)
    last = process.moved_bytes()
    process.following.stop()
    assert process.moved_bytes() >= last


def test_a_plan_is_left_when_other_threads_compute_and_found_again(process: Process) -> None:
    process.enter()
    assert not process.following.look().leave
    process.inbox.take({"type": "threads", "threads": 4})
    verdict = process.following.look()
    assert (verdict.leave, verdict.text) == (True, "the process now computes with 4 threads")
    assert process.following.leave(verdict.text) == SHAPE
    process.following.stop()
    assert process.following.managed is None
    assert process.following.shapes.find(SHAPE) is PLANNED


def test_another_goal_is_planned_from_the_live_plans_profile(process: Process) -> None:
    process.enter(replace(PLANNED, budget_bytes=PLAN.budget_bytes + 2 * PAGE))
    process.linked.set(small_bytes=PAGE)
    given = process.following.plan_input()
    assert (given.shape, given.profile) == (SHAPE, PLANNED.profile)
    assert given.unmanaged_bytes == 2 * PAGE  # the plan's reserve for unmanaged bytes
    process.linked.set(small_bytes=3 * PAGE)
    assert process.following.plan_input().unmanaged_bytes == 3 * PAGE


def test_a_plan_for_varying_sizes_is_planned_again_for_the_same_sizes(process: Process) -> None:
    shape = replace(SHAPE, sizes_vary=True)
    vary = np.array([True, False, True])
    layout = with_slack(PLAN.layout, Sizes(PLAN.layout.slots["bytes"], vary, vary))
    process.enter(replace(PLANNED, shape=shape, plan=replace(PLAN, layout=layout)))
    sizes = process.following.plan_input().sizes
    assert sizes is not None
    assert (sizes.vary.tolist(), sizes.optional.tolist()) == (vary.tolist(), vary.tolist())
    assert sizes.largest_bytes.tolist() == PLAN.layout.slots["bytes"].tolist()
    # The times and the moved bytes of steps vary with the sizes of allocations, so they do not show
    # whether the plan's assumptions are right.
    for step in range(1, 4 * WINDOW_STEPS):
        process.linked.set(step=step, barrier_wait_ns=step * 10**9)
        assert process.following.corrected() is None
        assert not process.following.begin_recording()


def test_pages_are_moved_to_the_first_plans_initial_tiers(process: Process) -> None:
    process.pages.heap[4] = SLOW
    process.enter()
    brought = process.following.moves().moved_by_entry()[BROUGHT]
    assert brought >= PAGE
    # If a plan is entered while another plan is live, no page is moved to its initial tier. The
    # scheduled moves of the new plan bring the fast pages within the budget.
    process.pages.heap[4] = SLOW
    process.enter()
    assert process.following.moves().moved_by_entry()[BROUGHT] == brought


def test_no_barrier_waits_once_the_plan_is_not_followed(process: Process) -> None:
    process.enter()
    process.linked.set(position=10 << 32 | 1)
    process.enter()  # the process still follows a plan, so its barriers hold
    assert process.moves_done() < 10 << 32 | LAST
    process.following.stop()
    # The process may begin further steps before it reads that it is detached.
    assert process.moves_done() > 12 << 32 | LAST


def test_the_barriers_of_the_next_plan_hold_again(process: Process) -> None:
    process.enter()
    process.following.stop()
    process.enter()
    wait(lambda: process.moves_done() < 10 << 32 | LAST)


@pytest.mark.parametrize("entered", [False, True])
def test_a_plan_that_is_live_already_is_followed(process: Process, entered: bool) -> None:
    process.pages.heap[4] = SLOW
    process.following.resume(PLANNED, entered)
    assert process.following.managed is not None
    assert process.following.shapes.find(SHAPE) is PLANNED
    assert (BROUGHT in process.following.moves().moved_by_entry()) is not entered
