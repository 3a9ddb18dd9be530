# SPDX-License-Identifier: Apache-2.0
"""The mover's thread: the positions it publishes, the bytes it moves and charges, and how it ends.

The processes' pages are absent, or their memory is fake. tests/vm/test_migrate.py tests real moves.
"""

from __future__ import annotations

import errno
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from sentineld.migrate.mover import Mover
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.process_memory import KernelMemory, Memory, Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.model.arrays import Table
from sentineld.model.plan import MOVE_DTYPE, SLOT_DTYPE, Layout, Plan, Prediction, Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.expected import BIRTH_DTYPE, DROP_DTYPE, EVENT_DTYPE, ExpectedStep
from tests.unit.waiting import wait

PAGE = 4096
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 30)), 1e8, "config")
PATIENCE_S = 120.0
ARENA = 1 << 30
NO_BIRTHS = np.zeros(0, BIRTH_DTYPE)
UNMANAGED_BYTES = 3 * PAGE
PLAN_BYTES = 1 << 20


class Run:
    """A mover for a sleeping process. Arena and heap are not mapped, so all pages are absent."""

    def __init__(
        self,
        memory: Memory | None = None,
        births: Table = NO_BIRTHS,
        tier: int = 1,
        plan_bytes: int = PLAN_BYTES,
        session_bytes: int = PLAN_BYTES + UNMANAGED_BYTES,
        initial: Table | None = None,
    ) -> None:
        """births: arena births in stretch 2. If there are any, the layout has a barrier at boundary
        2, which waits for the moves of boundary 1.
        tier: the tier to which the plan moves the heap's four pages at boundary 1.
        plan_bytes, session_bytes: the budgets of the plan and of the session.
        initial: the plan's initial tiers; None: none."""
        self.process = subprocess.Popen(["sleep", "600"])
        self.published: list[int] = []
        self.ended: list[str] = []
        self._news = threading.Condition()
        moves = np.array([(1, 2, 0, Space.HEAP, tier, 0, 4 * PAGE)], MOVE_DTYPE)
        waits = np.array([-1, -1, 1 if len(births) else -1, -1], np.int32)
        layout = Layout(np.zeros(0, SLOT_DTYPE), np.zeros(0, np.uint32), (), waits, 0)
        events = np.zeros(len(births), EVENT_DTYPE)
        events["birth"] = True
        for name in ("stretch", "tier", "offset", "bytes"):
            events[name] = births[name]
        plan = Plan(
            "test",
            plan_bytes,
            layout,
            moves,
            np.zeros(0, np.uint8),
            (),
            Prediction(0, 0, 0, 0, 0.0),
            initial=np.zeros(0, MOVE_DTYPE) if initial is None else initial,
        )
        self.mover = Mover(
            TIERS,
            PlannedStep(
                plan,
                ExpectedStep(births, np.zeros(0, DROP_DTYPE), events, np.zeros(4, np.int64)),
            ),
            ProcessPorts(
                pid=self.process.pid,
                memory=memory or KernelMemory(self.process.pid, TIERS),
                spaces={Space.ARENA: (ARENA, 4 * PAGE), Space.HEAP: (PAGE, 4 * PAGE)},
                publish=self._publish,
                unmanaged_bytes=lambda: UNMANAGED_BYTES,
                ended=self._end,
            ),
            session_bytes,
        )

    def _publish(self, position: int) -> None:
        with self._news:
            self.published.append(position)
            self._news.notify_all()

    def _end(self, why: str) -> None:
        with self._news:
            self.ended.append(why)
            self._news.notify_all()

    def wait_published(self, position: int) -> bool:
        with self._news:
            return self._news.wait_for(lambda: position in self.published, PATIENCE_S)

    def wait_ended(self) -> bool:
        with self._news:
            return self._news.wait_for(lambda: bool(self.ended), PATIENCE_S)

    def end_process(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(memory: SlowMemory | None = None, births: Table = NO_BIRTHS) -> Iterator[Run]:
    """A Run whose mover is stopped at the end."""
    made = Run(memory, births)
    try:
        yield made
    finally:
        if memory is not None:
            memory.let.set()
        made.mover.stop()
        made.end_process()


@pytest.fixture
def run() -> Iterator[Run]:
    with running() as made:
        yield made


def test_moves_of_absent_pages_are_done_at_once(run: Run) -> None:
    run.mover.start(5 << 32)
    assert run.wait_published(5 << 32)
    run.mover.notify(5 << 32 | 2)
    assert run.wait_published(5 << 32 | 2)
    assert run.mover.ledger.totals() == {("demote", "already-there", "skipped"): 4 * PAGE}
    assert run.mover.by_tier() == [0, 0]
    assert run.mover.fast_bytes() == 3 * PAGE


def test_missed_positions_are_caught_up_with(run: Run) -> None:
    run.mover.start(1 << 32)
    run.mover.notify(4 << 32 | 3)
    assert run.wait_published(4 << 32 | 3)
    run.mover.notify(3 << 32)  # a late notification of an earlier position
    run.mover.notify(5 << 32)
    assert run.wait_published(5 << 32)
    assert run.published == sorted(run.published)


def test_a_paused_mover_releases_the_whole_step(run: Run) -> None:
    run.mover.start(1 << 32)
    run.mover.notify(2 << 32 | 1)
    run.mover.pause()
    assert run.wait_published(2 << 32 | 0xFFFFFFFF)
    run.mover.resume(3 << 32)
    run.mover.notify(3 << 32 | 2)
    assert run.wait_published(3 << 32 | 2)
    assert run.published == sorted(run.published)


def test_a_dead_process_ends_the_mover_and_is_reported_once(run: Run) -> None:
    run.mover.start(1 << 32)
    assert run.wait_published(1 << 32)
    run.end_process()
    run.mover.resume(2 << 32)
    assert run.wait_ended()
    assert run.ended == ["the process is gone"]


def test_entering_a_dead_process_raises(run: Run) -> None:
    run.end_process()
    with pytest.raises(ProcessLookupError):
        run.mover.enter()


def test_stop_after_a_start_without_a_free_thread(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            run.mover.start(1 << 32)
    run.mover.stop()


def test_stop_without_start(run: Run) -> None:
    run.mover.stop()
    assert not run.published


class SlowMemory:
    """Memory whose heap pages are all on one node. Each move waits until the event `let` is set."""

    batch_pages = ahead_pages = 4
    exact = False
    waits = True

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.let = threading.Event()
        self.node = 0

    def query_pages(self, pages: Addresses) -> Status:
        return np.where(pages < ARENA, self.node, -errno.ENOENT).astype(np.int32)

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        self.asked.set()
        assert self.let.wait(PATIENCE_S)
        self.node = node
        return MoveResult(self.query_pages(pages), 0)

    def begin_series(self, since_ns: int) -> None:
        pass

    def best_node(self, tier: int) -> tuple[int, int]:
        return tier, 1 << 30


class FaultyMemory(SlowMemory):
    """Memory whose code has a bug."""

    def query_pages(self, pages: Addresses) -> Status:
        raise MemoryError


def test_an_error_in_the_movers_code_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with running(FaultyMemory()) as run:
        run.mover.start(1 << 32)
        assert run.wait_ended()
        assert run.ended == ["internal error of the daemon"]
    assert "MemoryError" in caplog.text


class BusyMemory(SlowMemory):
    """Memory whose last two heap pages are busy during the first move."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = np.zeros(4, np.int32)
        self.busy = np.array([False, False, True, True])

    def query_pages(self, pages: Addresses) -> Status:
        heap = pages < ARENA
        found = np.full(len(pages), -errno.ENOENT, np.int32)
        found[heap] = self.nodes[(pages[heap] - PAGE) // PAGE]
        return found

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        self.asked.set()
        assert self.let.wait(PATIENCE_S)
        numbers = (pages - PAGE) // PAGE
        moved = ~self.busy[numbers]
        self.nodes[numbers[moved]] = node
        self.busy[:] = False
        return MoveResult(np.where(moved, node, -errno.EBUSY).astype(np.int32), 0)


def test_a_move_whose_last_pages_are_late_is_counted_once() -> None:
    memory = BusyMemory()
    with running(memory) as run:
        run.mover.start(1 << 32 | 1)
        assert memory.asked.wait(PATIENCE_S)
        run.mover.notify(1 << 32 | 3)  # the move's deadline has passed
        memory.let.set()
        moved = {("demote", "plan", "moved"): 4 * PAGE}
        wait(lambda: run.mover.ledger.totals() == moved)
        assert run.mover.ledger.late_moves == 1


class WaitingMemory(BusyMemory):
    """Memory whose first move is interrupted after two pages. Later moves are not interrupted."""

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        self.asked.set()
        count = len(pages)
        if not self.let.is_set():
            assert wait is not None
            assert wait(int(2 * PATIENCE_S * 1e9))  # longer than the test waits
            self.let.set()
            count = 2
        self.nodes[(pages[:count] - PAGE) // PAGE] = node
        return MoveResult(self.query_pages(pages), errno.EINTR if count < len(pages) else 0)


def test_a_boundary_interrupts_a_move_and_the_other_pages_follow() -> None:
    memory = WaitingMemory()
    with running(memory) as run:
        run.mover.start(1 << 32 | 1)
        assert memory.asked.wait(PATIENCE_S)
        run.mover.notify(1 << 32 | 3)
        assert run.wait_published(1 << 32 | 3)
        assert run.mover.ledger.totals() == {("demote", "plan", "moved"): 4 * PAGE}
        assert run.mover.ledger.calls == 2
        assert run.mover.ledger.late_moves == 1  # the move's deadline has passed


@pytest.mark.parametrize("end", ["pause", "stop"])
def test_a_paused_or_stopped_mover_ends_the_move_under_way(end: str) -> None:
    memory = WaitingMemory()
    with running(memory) as run:
        run.mover.start(1 << 32 | 1)
        assert memory.asked.wait(PATIENCE_S)
        getattr(run.mover, end)()
        assert memory.let.wait(PATIENCE_S)  # the move has ended


class Watcher:
    """A watcher. Until `begun` is set, its disarm() raises the error with which the kernel module
    refuses an unknown range."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.calls: list[str] = []

    def disarm(self, start: int, length_bytes: int) -> None:
        if not self.begun.is_set():
            raise FileNotFoundError(2, "no such range")
        self.calls.append("disarm")

    def arm(self, start: int, length_bytes: int) -> None:
        self.calls.append("arm")


def test_watching_begins_and_ends_between_two_moves() -> None:
    memory, watcher = SlowMemory(), Watcher()
    with running(memory) as run:
        run.mover.start(1 << 32)
        run.mover.notify(1 << 32 | 2)
        assert memory.asked.wait(PATIENCE_S)
        begin = threading.Thread(target=lambda: run.mover.watch(watcher, watcher.begun.set))
        begin.start()
        assert not watcher.begun.wait(0.2)  # a move is under way
        memory.let.set()
        begin.join(PATIENCE_S)
        assert watcher.begun.is_set()
        assert watcher.calls == []
        memory.node = 0
        run.mover.resume(2 << 32)
        run.mover.notify(2 << 32 | 2)
        assert run.wait_published(2 << 32 | 2)
        # Both spaces are disarmed while their residency is read, then the heap while it is moved.
        assert watcher.calls[:4] == ["disarm", "disarm", "arm", "arm"]
        assert watcher.calls[4:6] == ["disarm", "arm"]
        assert run.mover.unwatch(lambda: watcher.calls[0]) == "disarm"
        assert not run.ended


class ArmedMemory(SlowMemory):
    """Memory that, like Linux 6.1, does not report the nodes of armed pages. It is also the
    watcher that arms them."""

    def __init__(self) -> None:
        super().__init__()
        self.let.set()
        self.arena = -errno.ENOENT
        self.armed: set[int] = set()

    def query_pages(self, pages: Addresses) -> Status:
        nodes = np.where(pages < ARENA, self.node, self.arena)
        return np.where(np.isin(pages, list(self.armed)), -errno.ENOENT, nodes).astype(np.int32)

    def disarm(self, start: int, length_bytes: int) -> None:
        self.armed -= set(range(start, start + length_bytes, PAGE))

    def arm(self, start: int, length_bytes: int) -> None:
        self.armed |= set(range(start, start + length_bytes, PAGE))

    def arm_heap(self) -> None:
        self.arm(PAGE, 4 * PAGE)


def test_a_sleeping_mover_wakes_at_boundaries_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes for each step, and for boundary 1, where a move begins. The process waits for this
    boundary at boundary 2. The mover sleeps at boundaries 2 and 3."""
    monkeypatch.setattr("sentineld.migrate.mover.IDLE_S", 10 * PATIENCE_S)
    steps = range(6, 12)
    births = np.array([(2, 0, False, 0, PAGE)], BIRTH_DTYPE)
    with running(births=births) as run:
        run.mover.start(5 << 32)
        assert run.wait_published(5 << 32)
        for step in steps:
            for boundary in (0, 1):
                run.mover.notify(step << 32 | boundary)
                assert run.wait_published(step << 32 | boundary)
            time.sleep(0.02)  # boundary 1 is published shortly before the mover sleeps
            run.mover.notify(step << 32 | 2)
            time.sleep(0.02)  # a mover that is not asleep publishes boundary 2
            run.mover.notify(step << 32 | 3)
        asleep = [step for step in steps if step << 32 | 2 not in run.published]
        assert len(asleep) > len(steps) / 2


@pytest.mark.parametrize("restart", [False, True])
def test_watched_pages_do_not_count_as_absent(restart: bool) -> None:
    memory = ArmedMemory()
    with running(memory) as run:
        mover = run.mover
        mover.begin(1 << 32 | 2)
        mover.work()
        assert mover.by_tier() == [0, 4 * PAGE]
        mover.watch(memory, memory.arm_heap)
        armed = set(memory.armed)
        assert mover.gaps == 0
        if restart:
            mover.begin(3 << 32)
        for step in range(3 if restart else 2, 9):
            mover.notify(step << 32)
            mover.work()
            assert mover.by_tier() == [0, 4 * PAGE]
        assert armed <= memory.armed
        assert mover.gaps == (2 if restart else 0)
        memory.arena = 0
        mover.unwatch(memory.armed.clear)
        mover.notify(9 << 32)  # the residency was not read again until now
        mover.work()
        assert mover.by_tier() == [4 * PAGE, 4 * PAGE]


def test_pages_are_disarmed_before_the_residency_is_read_again() -> None:
    """If a step begins while a watch ends, the residency is read only after the watch has ended."""
    memory = ArmedMemory()
    with running(memory) as run:
        mover = run.mover
        mover.begin(1 << 32 | 2)
        mover.work()
        mover.watch(memory, memory.arm_heap)
        follower = threading.Thread(target=mover.work)

        def end() -> None:
            mover.notify(3 << 32)
            follower.start()
            follower.join(0.2)
            memory.armed.clear()

        mover.unwatch(end)
        follower.join(PATIENCE_S)
        assert mover.by_tier() == [0, 4 * PAGE]


def test_births_that_wait_for_demotions_are_not_charged() -> None:
    memory = SlowMemory()
    births = np.array([(2, 0, True, 0, 3 * PAGE)], BIRTH_DTYPE)
    with running(memory, births) as run:
        run.mover.start(1 << 32 | 2)
        assert memory.asked.wait(PATIENCE_S)
        assert run.mover.fast_bytes() == (4 + 3) * PAGE  # 4 heap pages and 3 unmanaged pages
        memory.let.set()
        assert run.wait_published(1 << 32 | 2)
        assert run.mover.fast_bytes() == (3 + 3) * PAGE  # births of 3 pages, and 3 unmanaged pages


@pytest.mark.parametrize(
    ("plan_pages", "session_pages", "promoted_pages"),
    [
        # The 3 unmanaged pages are charged to the session's budget of 5 pages, too. So only
        # 5 - 3 = 2 pages can be promoted, although the plan's budget is 4 pages.
        (4, 5, 2),
        # The 3 unmanaged pages leave 7 - 3 = 4 pages of the session's budget for promotions. The
        # mover does not limit promotions to the plan's budget of 2 pages.
        (2, 7, 4),
    ],
)
def test_promotions_and_unmanaged_bytes_share_the_session_s_budget(
    plan_pages: int, session_pages: int, promoted_pages: int
) -> None:
    memory = BusyMemory()
    memory.nodes[:], memory.busy[:] = 1, False
    memory.let.set()
    run = Run(memory, tier=0, plan_bytes=plan_pages * PAGE, session_bytes=session_pages * PAGE)
    try:
        run.mover.begin(1 << 32 | 1)
        run.mover.work()
        assert run.mover.by_tier() == [promoted_pages * PAGE, (4 - promoted_pages) * PAGE]
        assert run.mover.fast_bytes() == promoted_pages * PAGE + UNMANAGED_BYTES
    finally:
        run.end_process()


def test_entering_keeps_to_the_session_s_budget() -> None:
    memory = BusyMemory()
    memory.nodes[:], memory.busy[:] = 1, False
    memory.let.set()
    initial = np.array([(0, 0, 4, Space.HEAP, 0, 0, 4 * PAGE)], MOVE_DTYPE)
    # Of the session's 5 pages, 3 are for the unmanaged bytes.
    run = Run(memory, session_bytes=5 * PAGE, initial=initial)
    try:
        run.mover.enter()
        assert run.mover.by_tier() == [2 * PAGE, 2 * PAGE]
        assert run.mover.ledger.totals() == {
            ("promote", "initial", "moved"): 2 * PAGE,
            ("promote", "no-room", "skipped"): 2 * PAGE,
        }
    finally:
        run.end_process()
