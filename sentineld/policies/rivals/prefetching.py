# SPDX-License-Identifier: Apache-2.0
"""A prefetcher of blocks for the next executions: the common part of DeepUM, OC-DNN and DRAGON.

An execution is one run of an operator, here a stretch. Blocks are the simulator's cells.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.rivals.reactive import exchange, without_move_limit


class Order(Protocol):
    """The order of executions, as far as it is known."""

    def note(self, execution: int) -> None:
        """Record that this execution has ended."""

    def predict(self, count: int) -> list[int]:
        """The next executions, at most `count`."""


class StepOrder:
    """The order of a step's executions, known from the start, because the framework has the step's
    graph."""

    def __init__(self, stretch_count: int) -> None:
        self._count = stretch_count
        self._last = -1

    def note(self, execution: int) -> None:
        """See Order."""
        self._last = execution

    def predict(self, count: int) -> list[int]:
        """See Order. The step repeats."""
        return [(self._last + number) % self._count for number in range(1, count + 1)]


class Prefetcher:
    """The state of a prefetching policy: the blocks that each execution used, and the time of each
    block's last migration. Blocks that the next executions do not use are evicted before the room
    is needed, the least recently migrated ones first. Unless the policy's plan drops the pages of
    freed tensors (FirstTouchPolicy.drops), these pages are prefetched and evicted like others."""

    interval_ns = 0.0
    """0: tick() is called at every boundary."""

    def __init__(self, ahead: int, order: Order) -> None:
        """ahead: number of executions for which blocks are prefetched, including the one that
        begins."""
        self._ahead = ahead
        self._order = order
        self._blocks: dict[int, Integers] = {}
        self._fast = np.zeros(0, np.int64)
        self._pages = np.zeros(0, np.int64)  # largest size of each block so far
        self._migrated = np.zeros(0, np.int64)  # tick at which pages of each block last became fast
        self._ticks = 0

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Prefetch the blocks of the next executions and evict others; see Reactor."""
        fast, slow = observation.fast, observation.slow
        if not self._ticks:
            self._fast, self._pages, self._migrated = np.zeros((3, len(fast)), np.int64)
        self._ticks += 1
        self._migrated[fast > self._fast] = self._ticks
        self._fast = fast
        self._pages = np.maximum(self._pages, fast + slow)
        self._blocks[observation.stretch] = np.flatnonzero(observation.accesses > 0)
        self._order.note(observation.stretch)
        wanted = self._wanted(observation)
        rising = wanted[slow[wanted] > 0]
        idle = fast > 0
        idle[wanted] = False
        falling = self._victims(np.flatnonzero(idle), observation)
        # Predicted blocks that do not exist yet will be born, and need room, too.
        births = int(self._pages[wanted[fast[wanted] + slow[wanted] == 0]].sum())
        needed = births + int(slow[rising].sum()) - observation.free_pages
        return exchange(without_move_limit(observation), rising, falling, needed, births)

    def _wanted(self, observation: Observation) -> Integers:
        """The blocks of the next executions, the nearest first, as many as the fast tier
        can hold at the same time."""
        executions = self._order.predict(self._ahead)
        blocks = [self._blocks[execution] for execution in executions if execution in self._blocks]
        every = np.concatenate([np.zeros(0, np.int64), *blocks])
        _, first = np.unique(every, return_index=True)
        wanted: Integers = every[np.sort(first)]
        return wanted[np.cumsum(self._pages[wanted]) <= observation.capacity_pages]

    def _victims(self, idle: Integers, observation: Observation) -> Integers:
        """The idle blocks (fast, but not wanted) in the order of their eviction."""
        del observation
        return idle[np.argsort(self._migrated[idle], kind="stable")]
