# SPDX-License-Identifier: Apache-2.0
"""A simulated process that follows a plan's layout, and its pages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentineld.migrate.ports import PlannedStep
from sentineld.migrate.process_memory import Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.expected import UNKNOWN_TIER

PAGE = 4096
TIERS = Tiers((Tier((0,), 1 << 30, 1e11, 1e11), Tier((1,), 1 << 30, 2e10, 2e10)), 4e8, "config")
STARTS = {Space.ARENA: 1 << 40, Space.HEAP: 1 << 41}
ABSENT, ENOENT = -1, -2


def pages_of(event: np.void) -> slice:
    """The pages of the arena that are born or dropped."""
    first = int(event["offset"]) // PAGE
    return slice(first, first + -(-int(event["bytes"]) // PAGE))


class Process:
    """A process that follows a plan's layout: it waits at barriers, and touches the pages of each
    tensor at its birth. The births and deaths of a stretch are evenly distributed over it."""

    def __init__(self, plan: Plan, planned: PlannedStep, profile: Profile) -> None:
        self.waits = plan.layout.waits
        self.times_ns = profile.stretches["time_ns"].astype(float)
        events = planned.step.events
        self.events = [events[events["stretch"] == k] for k in range(len(self.times_ns))]
        heap_end = max(int(one["offset"] + one["bytes"]) for one in [*plan.initial, *plan.moves])
        self.nodes = {
            Space.ARENA: np.full(plan.layout.arena_bytes // PAGE + 1, ABSENT, np.int64),
            Space.HEAP: np.full(heap_end // PAGE + 1, 1, np.int64),
        }
        self.step = self.stretch = self.event = 0
        self.elapsed_ns = 0.0
        self.done = -1
        self.most_pages = 0

    @property
    def position(self) -> int:
        return self.step << 32 | self.stretch

    def publish(self, position: int) -> None:
        self.done = max(self.done, position)

    def note_fast_pages(self) -> None:
        if self.step:  # the plan is entered in the first step, which does not count
            fast = sum(int(np.count_nonzero(nodes == 0)) for nodes in self.nodes.values())
            self.most_pages = max(self.most_pages, fast)

    def held(self) -> bool:
        wait = int(self.waits[self.stretch])
        step = self.step if wait < self.stretch else self.step - 1
        return wait >= 0 and step >= 0 and self.done < (step << 32 | wait)

    def run(self, time_ns: float) -> None:
        """Let the process run for this time, or until it has to wait."""
        while not (self.elapsed_ns == 0 and self.held()):
            events = self.events[self.stretch]
            share = min((self.event + 1) / (len(events) + 1), 1.0)
            next_ns = share * self.times_ns[self.stretch]
            if next_ns - self.elapsed_ns > time_ns:
                self.elapsed_ns += time_ns
                return
            time_ns -= next_ns - self.elapsed_ns
            self.elapsed_ns = next_ns
            if self.event < len(events):
                self.happen(events[self.event])
                self.event += 1
                continue
            self.stretch, self.event, self.elapsed_ns = self.stretch + 1, 0, 0.0
            if self.stretch == len(self.times_ns):
                self.step, self.stretch = self.step + 1, 0

    def happen(self, event: np.void) -> None:
        nodes = self.nodes[Space.ARENA][pages_of(event)]
        if event["birth"]:
            nodes[nodes == ABSENT] = 0 if event["tier"] == UNKNOWN_TIER else event["tier"]
        else:
            nodes[:] = ABSENT
        self.note_fast_pages()


class SlowMemory:
    """The pages of a Process. call_ns yields the duration in ns of each call of move_pages()."""

    batch_pages = ahead_pages = 512
    exact = waits = True

    def __init__(self, process: Process, call_ns: Iterator[float]) -> None:
        self.process, self.call_ns = process, call_ns
        self.reads = 0  # number of queries of all pages of the arena

    def begin_series(self, since_ns: int) -> None:
        pass

    def best_node(self, tier: int) -> tuple[int, int]:
        return tier, 1 << 30

    def _find(self, pages: Addresses) -> tuple[Integers, Integers]:
        space = (pages >= STARTS[Space.HEAP]).astype(np.int64)
        starts = np.array([STARTS[Space.ARENA], STARTS[Space.HEAP]])
        return space, (pages.astype(np.int64) - starts[space]) // PAGE

    def query_pages(self, pages: Addresses) -> Status:
        space, page = self._find(pages)
        self.reads += np.count_nonzero(space == 0) == len(self.process.nodes[Space.ARENA])
        status = np.full(len(pages), ENOENT, np.int32)
        for index, name in enumerate((Space.ARENA, Space.HEAP)):
            nodes = self.process.nodes[name][page[space == index]]
            status[space == index] = np.where(nodes == ABSENT, ENOENT, nodes)
        return status

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        space, page = self._find(pages)
        status = np.full(len(pages), ENOENT, np.int32)
        call_ns = next(self.call_ns)
        for at in range(len(pages)):
            self.process.run(call_ns / len(pages))
            nodes = self.process.nodes[(Space.ARENA, Space.HEAP)[space[at]]]
            if nodes[page[at]] != ABSENT:
                nodes[page[at]] = status[at] = node
        self.process.note_fast_pages()
        return MoveResult(status, 0)

    def close(self) -> None:
        pass
