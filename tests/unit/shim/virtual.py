# SPDX-License-Identifier: Apache-2.0
"""A training on emulated tiers in virtual time.

The real mover changes the shim's real residency map, and the shim's real code adds up
the delay that each stretch owes. Only the process is simulated, from the profile: time, births,
deaths and waits.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sentineld.migrate.clock import Clock
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.mover import Mover
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import SLOT_DROP, SLOT_DROP_PARTS, SLOT_PLANNED, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.observe.residency_segment import ResidencySegment
from sentineld.plan.accesses import access_table
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.plan.layout_wire import pack_layout
from sentineld.plan.policy import fast_pages
from sentineld.plan.turnover import slot_flags
from sentineld.policies.registry import policy

ROOM_BYTES = 1 << 40
HEAP_BYTES_MORE = 1 << 20


class Passed(NamedTuple):
    """Measurements of one step."""

    ns: float  # duration
    owed_ns: int  # delay for slow pages
    waited_ns: float  # time spent at barriers
    moved_bytes: int  # by the mover, in both directions


class _Event(NamedTuple):
    """A birth or a drop within a stretch."""

    share: float  # share of the stretch's time, without the delay, that passes before the event
    birth: bool  # False: a drop
    slot: int


class Training(Clock):
    """One process and its mover; call close() at the end."""

    def __init__(self, harness: ctypes.CDLL, plan: Plan, profile: Profile, tiers: Tiers) -> None:
        """Start at boundary 0 of step 1. harness: fixture of tests/unit/shim."""
        self._harness, self._plan, self._profile = harness, plan, profile
        self._count = profile.stretch_count
        self._times = profile.stretches["time_ns"].astype(float).tolist()
        self._events = _events(plan, profile)
        self._waits = plan.layout.waits.tolist()
        self._heap, heap_bytes = self._make_heap()
        self._handle = self._emulate(tiers)
        self._segment = ResidencySegment(harness.test_emulation_fd(self._handle))
        self._step, self._stretch = 1, 0
        self._now = self._end = self._waited = self._step_began = 0.0
        self._done, self._owed_before = 0, 0
        self._queue: list[tuple[float, bool, int]] = []
        self._waiting = False
        self.steps: list[Passed] = []
        roomy = replace(
            tiers, tiers=tuple(replace(tier, capacity_bytes=ROOM_BYTES) for tier in tiers.tiers)
        )
        spaces = {
            Space.ARENA: (1 << 40, plan.layout.arena_bytes),
            Space.HEAP: (1 << 41, heap_bytes),
        }
        self._mover = Mover(
            roomy,
            PlannedStep.of(plan, profile),
            ProcessPorts(
                pid=0,
                memory=EmulatedMemory(
                    self._segment,
                    spaces,
                    roomy,
                    TokenBucket(tiers.migration_bytes_per_s),
                    clock=self,
                ),
                spaces=spaces,
                publish=self._publish,
                position=self._position,
                clock=self,
            ),
            plan.budget_bytes,
        )
        self._moved_before = 0
        self._begin_stretch()

    def now_ns(self) -> int:
        """Virtual time."""
        return round(self._now)

    def sleep(self, duration_ns: int) -> None:
        """Let virtual time pass; the process continues to run meanwhile."""
        self._pass_until(self._now + duration_ns)

    def wait(
        self, news: threading.Condition, arrived: Callable[[], bool], duration_ns: int
    ) -> bool:
        """Let virtual time pass until arrived() is true at a boundary, but at most duration_ns."""
        self._pass_until(self._now + duration_ns, arrived)
        return arrived()

    def run(self, steps: int) -> list[Passed]:
        """Train this many more steps; returns all steps so far."""
        if not self.steps:
            self._mover.enter()
            self._mover.begin(self._position())
        wanted = len(self.steps) + steps
        while len(self.steps) < wanted:
            self._mover.work()
            before = self._position(), self._waiting
            # The mover has no work until the next boundary.
            self._pass_until(self._end)
            assert before != (self._position(), self._waiting), "no move is left to wait for"
        return self.steps

    def close(self) -> None:
        """Free the C objects."""
        self._harness.test_emulation_delete(self._handle)
        self._harness.test_heap_delete(self._heap)

    def _make_heap(self) -> tuple[int, int]:
        """Make a heap with live blocks at the places of the persistent tensors. Returns the heap
        and its used bytes."""
        profile, page = self._profile, self._profile.page_bytes
        rows = np.flatnonzero(persistent(profile))
        first = (profile.tensors["address"][rows] - np.uint64(profile.heap_base)) // np.uint64(page)
        pages = tensor_pages(profile)[rows]
        order = np.argsort(first)
        used = int((first.astype(np.int64) + pages).max(initial=0)) * page
        heap = self._harness.test_heap_new(used + HEAP_BYTES_MORE)
        at, gaps = 0, []
        base = None
        for begin, size in zip(first[order].tolist(), pages[order].tolist(), strict=True):
            if begin > at:
                gaps.append(self._harness.test_heap_take(heap, (begin - at) * page))
            address = self._harness.test_heap_take(heap, size * page)
            base = address - begin * page if base is None else base
            assert address == base + begin * page
            at = begin + size
        for gap in gaps:
            self._harness.test_heap_give(heap, gap)
        return heap, used

    def _emulate(self, tiers: Tiers) -> int:
        layout, profile = self._plan.layout, self._profile
        limit = fast_pages(policy(self._plan.policy), self._plan, profile.page_bytes)
        accesses = access_table(profile, layout, tiers)
        fd = os.memfd_create("layout")
        os.write(fd, pack_layout(layout, 1, tiers, self._count, accesses, limit))
        problem = ctypes.c_char_p()
        handle = self._harness.test_emulation_new(fd, self._heap, None, 1, ctypes.byref(problem))
        os.close(fd)
        assert not problem.value, problem.value
        return int(handle)

    def _publish(self, position: int) -> None:
        self._done = position

    def _position(self) -> int:
        return self._step << 32 | self._stretch

    def _must_wait(self) -> bool:
        wait = self._waits[self._stretch]
        step = self._step - (wait > self._stretch)
        return wait >= 0 and step >= 1 and (step << 32 | wait) > self._done

    def _pass_until(self, until_ns: float, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Run the process until the time until_ns. A boundary at exactly this time is passed. After
        each boundary, return early if interrupted() is true."""
        while True:
            if self._waiting:
                if self._must_wait():
                    self._wait_until(until_ns)
                    return
                self._waiting = False
                self._begin_stretch()
            self._run_events(until_ns)
            if self._end > until_ns:
                self._now = max(self._now, until_ns)
                return
            self._now = max(self._now, self._end)
            self._pass_boundary()
            if self._now >= until_ns or interrupted():
                return

    def _wait_until(self, until_ns: float) -> None:
        self._waited += max(until_ns - self._now, 0.0)
        self._now = max(self._now, until_ns)

    def _run_events(self, until_ns: float) -> None:
        while self._queue and self._queue[0][0] <= until_ns:
            at_ns, birth, slot = self._queue.pop(0)
            self._now = max(self._now, at_ns)
            self._arrive()
            function = "emulation_slot_born" if birth else "emulation_slot_dropped"
            getattr(self._harness, function)(self._handle, slot)

    def _pass_boundary(self) -> None:
        self._stretch += 1
        if self._stretch == self._count:
            self._stretch = 0
            self._step += 1
            self._note_step()
        self._mover.notify(self._position())
        self._waiting = self._must_wait()
        if not self._waiting:
            self._begin_stretch()

    def _note_step(self) -> None:
        owed_ns, moved_bytes = self._segment.owed_ns, self._mover.ledger.moved_bytes()
        self.steps.append(
            Passed(
                self._now - self._step_began,
                owed_ns - self._owed_before,
                self._waited,
                moved_bytes - self._moved_before,
            )
        )
        self._owed_before, self._moved_before = owed_ns, moved_bytes
        self._waited, self._step_began = 0.0, self._now

    def _arrive(self) -> None:
        if self._harness.flight_active(self._handle):
            self._harness.flight_arrive(self._handle, round(self._now))

    def _begin_stretch(self) -> None:
        self._arrive()
        if not self._stretch:
            self._harness.emulation_recount(self._handle, len(self._segment.maps[Space.HEAP]))
        owed_ns = self._segment.owed_ns
        served = (ctypes.c_uint32 * 2)()
        self._harness.test_emulation_charge(self._handle, self._stretch, served)
        time_ns = self._times[self._stretch]
        self._queue = [
            (self._now + event.share * time_ns, event.birth, event.slot)
            for event in self._events[self._stretch]
        ]
        self._end = self._now + time_ns + self._segment.owed_ns - owed_ns


def _events(plan: Plan, profile: Profile) -> list[list[_Event]]:
    """Births and drops by stretch, in order of time."""
    begins = np.append(profile.stretches["event"].astype(np.int64), profile.event_count)
    flags = slot_flags(plan.layout, profile)
    listed: list[list[tuple[int, _Event]]] = [[] for _ in range(profile.stretch_count)]
    for row in np.flatnonzero(transient(profile) & ((flags & SLOT_PLANNED) != 0)).tolist():
        tensor = profile.tensors[row]
        for birth, name in ((True, "birth"), (False, "death")):
            if not birth and not flags[row] & (SLOT_DROP | SLOT_DROP_PARTS):
                continue
            stretch, event = int(tensor[f"{name}_stretch"]), int(tensor[f"{name}_event"])
            length = max(int(begins[stretch + 1] - begins[stretch]), 1)
            share = min(max((event - int(begins[stretch])) / length, 0.0), 1.0)
            listed[stretch].append((event, _Event(share, birth, int(tensor["slot"]))))
    return [
        [event for _, event in sorted(stretch, key=lambda one: (one[0], one[1].birth))]
        for stretch in listed
    ]
