# SPDX-License-Identifier: Apache-2.0
"""A mover for a sleeping process, and fake memory of this process."""

from __future__ import annotations

import errno
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sentineld.migrate.mover import Mover
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.process_memory import KernelMemory, Memory, Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.model.arrays import Table
from sentineld.model.plan import MOVE_DTYPE, SLOT_DTYPE, Layout, Plan, Prediction, Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.expected import BIRTH_DTYPE, DROP_DTYPE, EVENT_DTYPE, ExpectedStep

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
