# SPDX-License-Identifier: Apache-2.0
"""A live plan: pages move as planned, and moves pause while a step diverges."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.mover import Mover
from sentineld.migrate.token_bucket import SLACK_NS
from sentineld.model.plan import Plan
from sentineld.model.protocol import PAGING_DTYPE, Mode
from sentineld.observe.control_segment import ControlSegment
from sentineld.observe.paging_segment import PagingSegment
from sentineld.plan.correct import Progress
from sentineld.session.live import managed as managed_module
from sentineld.session.live.divergence import Patience
from sentineld.session.live.managed import Managed
from sentineld.session.live.shapes import Planned, Shape
from tests.unit.descriptors import open_descriptors
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers, with_layout
from tests.unit.toyprocess import FAST, SLOW, ToyPages, toy_linked
from tests.unit.waiting import wait

BOUNDARIES = 4
LAST = 0xFFFFFFFF


class Process:
    """A process that runs the toy's steps on emulated pages."""

    def __init__(
        self, bytes_per_s: float = 1e12, batch_pages: int = 256, plan: Plan | None = None
    ) -> None:
        self.linked, pages = toy_linked(), ToyPages(bytes_per_s, batch_pages)
        self.linked.set(barrier_timeout_ns=2_000_000_000)
        self.heap, self.moving = pages.heap, pages.moving
        self.ended: list[str] = []
        planned = Planned(
            Shape(1, ""), toy_profile(), toy_profile(), plan or toy_plan(), 7 * PAGE, 0.0
        )
        link = self.linked.link
        self.managed = Managed(
            link, planned, two_tiers(1e12), pages.memory, self.ended.append, Patience()
        )
        self.managed.start()

    def pass_boundary(self, step: int, boundary: int) -> None:
        self.linked.set(step=step, position=step << 32 | boundary)
        self.managed.mover.notify(step << 32 | boundary)

    def cross_boundary(self, step: int, boundary: int) -> None:
        """Pass a boundary as the shim does: wake the daemon only if it has asked for that."""
        before = int(self.linked.writer.header["position"][0])
        position = step << 32 | boundary
        self.linked.set(step=step, position=position)
        if before < int(self.linked.writer.header["wake_position"][0]) <= position:
            os.eventfd_write(self.linked.link.event_fd, 1)

    def words(self, **words: int) -> bool:
        """Write control words and pass them to follow(); returns whether to leave the plan."""
        self.linked.set(**words)
        return self.managed.follow(self.linked.link.segment.words()).leave

    def done(self) -> int:
        return int(self.linked.writer.header["moves_done"][0])

    def close(self) -> None:
        self.managed.stop()
        self.linked.close()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.close()


def test_pages_move_as_the_process_passes_boundaries(process: Process) -> None:
    wait(lambda: process.heap[0] == SLOW)  # boundary 0 demotes half of the state
    assert not process.words()
    process.pass_boundary(10, 2)
    wait(lambda: process.heap[0] == FAST)
    assert process.heap.tolist() == [FAST, FAST, SLOW, SLOW, FAST, FAST]
    assert process.ended == []


def test_a_diverged_step_stops_the_mover_and_lets_barriers_pass(process: Process) -> None:
    wait(lambda: process.heap[0] == SLOW)
    assert not process.words(mode=Mode.DIVERGED, diverged_steps=1, diverged_in_row=1)
    wait(lambda: process.done() == 10 << 32 | LAST)
    process.pass_boundary(10, 2)
    assert not process.words()
    # The next step follows the plan again.
    process.pass_boundary(11, 0)
    assert not process.words(mode=Mode.REPLAY, diverged_in_row=0)
    process.pass_boundary(11, 2)
    wait(lambda: process.heap[0] == FAST)
    assert process.managed.followed_steps() == 0


def test_while_moves_are_paused_no_step_waits_for_moves(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentineld.migrate.mover.IDLE_S", 1000.0)
    wait(lambda: process.heap[0] == SLOW)
    assert not process.words(mode=Mode.DIVERGED, diverged_steps=1, diverged_in_row=1)
    for step in range(10, 15):
        wait(lambda step=step: process.done() == step << 32 | LAST)
        process.cross_boundary(step, 2)
        process.cross_boundary(step + 1, 0)


def test_a_boundary_ends_an_emulated_move_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentineld.migrate.mover.IDLE_S", 1000.0)
    process = Process(bytes_per_s=PAGE / 1000)  # each page takes 1000 s
    words = process.linked.writer.header
    try:
        for boundary in (1, 2, 3):
            wait(lambda at=boundary: int(words["wake_position"][0]) == 10 << 32 | at)
            process.cross_boundary(10, boundary)
            wait(lambda at=boundary: process.managed.page_tiers().stretch == at)
    finally:
        process.close()


def test_births_are_charged_once_no_barrier_delays_them() -> None:
    waits = np.array([0, -1, -1, -1], np.int32)
    process = Process(plan=with_layout(toy_plan(), waits=waits))
    managed = process.managed
    try:
        wait(lambda: process.heap[0] == SLOW)
        process.pass_boundary(10, 2)
        wait(lambda: process.heap[0] == FAST)
        with process.moving:
            process.pass_boundary(11, 0)
            wait(lambda: managed.fast_bytes() == 4 * PAGE)  # the state is not demoted yet
            assert managed.by_tier() == [4 * PAGE, 2 * PAGE]
            process.linked.set(barrier_timeouts=1)
            assert managed.fast_bytes() == 7 * PAGE
            assert managed.by_tier() == [7 * PAGE, 2 * PAGE]
        wait(lambda: managed.fast_bytes() == 5 * PAGE)
        assert process.heap[0] == SLOW
    finally:
        process.close()


def test_unmanaged_bytes_leave_less_of_the_session_s_budget_for_promotions() -> None:
    linked, pages = toy_linked(small_bytes=2 * PAGE), ToyPages()
    profile = toy_profile()
    # The promotion of two pages at boundary 2 raises the plan's charge to 7 pages; the budget is 8.
    # So with 2 unmanaged pages, only one page can be promoted; with 1 unmanaged page, both can.
    planned = Planned(Shape(1, ""), profile, profile, toy_plan(), 8 * PAGE, 0.0)
    managed = Managed(
        linked.link, planned, two_tiers(1e12), pages.memory, lambda _: None, Patience()
    )
    mover = managed.mover
    assert isinstance(mover, Mover)
    try:
        mover.begin(10 << 32)
        mover.work()
        linked.set(position=10 << 32 | 2)
        mover.work()
        assert pages.heap[:2].tolist() == [FAST, SLOW]
        linked.set(small_bytes=PAGE)
        mover.work()
        assert pages.heap[:2].tolist() == [FAST, FAST]
    finally:
        managed.stop()
        linked.close()


def test_three_diverged_steps_in_a_row_leave_the_plan(process: Process) -> None:
    for step in (11, 12):
        assert not process.words(
            step=step, mode=Mode.DIVERGED, diverged_steps=step - 10, diverged_in_row=step - 10
        )
    assert process.words(step=13, diverged_steps=3, diverged_in_row=3)
    assert process.managed.followed_steps() == 0


def test_the_mover_asks_for_wake_ups_until_it_is_stopped(process: Process) -> None:
    words = process.linked.writer.header
    wait(lambda: int(words["wake_position"][0]) == 10 << 32 | 2)  # a move begins at boundary 2
    process.managed.stop()
    assert words["wake_position"][0] == 0


def test_a_boundary_that_was_passed_before_the_request_wakes_the_mover(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentineld.migrate.mover.IDLE_S", 1000.0)
    words, request = process.linked.writer.header, ControlSegment.set_wake_position
    wait(lambda: int(words["wake_position"][0]) == 10 << 32 | 2)
    requested: list[int] = []

    def request_late(segment: ControlSegment, position: int) -> bool:
        if not requested:
            # The shim has read the former wake_position, so it does not write to its eventfd.
            words["position"] = position
        requested.append(position)
        return request(segment, position)

    monkeypatch.setattr(ControlSegment, "set_wake_position", request_late)
    process.pass_boundary(10, 2)
    wait(lambda: bool(requested) and process.done() >= requested[0])


def test_moves_run_at_the_memorys_bandwidth() -> None:
    # A batch has two pages, and each page takes 20 ms.
    process = Process(bytes_per_s=50 * PAGE, batch_pages=2)
    try:
        wait(lambda: process.heap[0] == SLOW)
        process.pass_boundary(10, 2)
        wait(lambda: process.heap[0] == FAST)

        def progress() -> Progress:
            return process.managed.progress(process.linked.link.segment.words())

        wait(lambda: progress().moved_bytes == 4 * PAGE)
        found = progress()
        assert found.steps == 10
        # 4 pages take at least 4 x 20 ms, less twice the slack of the token bucket.
        assert found.busy_ns >= 4 * 20e6 - 2 * SLACK_NS
    finally:
        process.close()


def test_the_pagers_reads_for_faults_are_counted(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = process.linked.link
    assert process.managed.progress(link.segment.words()).faults == 0  # there is no pager
    words = np.zeros(1, PAGING_DTYPE)
    words["faults"], words["fault_reads"], words["fault_read_ns"] = 30, 20, 5_000_000
    monkeypatch.setattr(type(link), "paging", PagingSegment(words))
    found = process.managed.progress(link.segment.words())
    assert (found.faults, found.fault_reads, found.fault_read_ns) == (30, 20, 5_000_000)


def test_wake_ups_without_a_boundary_cost_pauses(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process keeps its eventfd readable, so the boundary thread's poll() never blocks."""
    event_fd, wait_for = process.linked.link.event_fd, threading.Event.wait
    notified: list[int] = []
    notified_at_pauses: list[int] = []

    def pause(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout != managed_module.IDLE_WAKE_UP_S:
            return wait_for(event, timeout)
        notified_at_pauses.append(len(notified))
        # The process passes one boundary in each of three pauses, and then no more.
        passed = len(notified_at_pauses)
        if passed > 3:
            return wait_for(event)
        process.linked.set(position=10 << 32 | passed)
        return False

    monkeypatch.setattr(process.managed.mover, "notify", notified.append)
    monkeypatch.setattr(threading.Event, "wait", pause)
    before, readable = os.dup(event_fd), os.eventfd(1 << 30, os.EFD_SEMAPHORE)
    os.dup2(readable, event_fd)
    os.eventfd_write(before, 1)  # the thread may be waiting for the replaced eventfd
    os.close(before)
    os.close(readable)
    wait(lambda: len(notified_at_pauses) == 4)
    assert notified_at_pauses == [1, 2, 3, 4]
    assert notified == [10 << 32 | boundary for boundary in range(4)]


@pytest.mark.parametrize("place", ["eventfd", "memory", "_mover"])
def test_a_plan_that_cannot_be_followed_leaves_nothing_open(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, each object that represents the process's memory has an open descriptor, as on
    paged tiers."""
    linked, open_memories = toy_linked(), 0

    class OpenMemory:
        def __init__(self, *_: object) -> None:
            nonlocal open_memories
            if place == "memory":
                raise SentinelError("failed", "no memory")
            open_memories += 1

        def close(self) -> None:
            nonlocal open_memories
            open_memories -= 1

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor")

    if place == "eventfd":
        monkeypatch.setattr(os, "eventfd", fail)
    elif place == "_mover":
        monkeypatch.setattr(managed_module, "_mover", fail)
    before = open_descriptors()
    with pytest.raises((OSError, SentinelError)):
        Managed(
            linked.link,
            Planned(Shape(1, ""), toy_profile(), toy_profile(), toy_plan(), 7 * PAGE, 0.0),
            two_tiers(1e12),
            cast(Any, OpenMemory),
            lambda reason: None,
            Patience(),
        )
    assert open_descriptors() <= before
    assert open_memories == 0
    linked.close()
