# SPDX-License-Identifier: Apache-2.0
"""Policy `deepum`: learn which blocks each execution uses, and prefetch for the next N executions.

Based on DeepUM (ASPLOS 2023), which trains on GPUs with unified memory. No artifact is public; the
rules come from third parties' notes. An execution is a kernel launch, here a stretch. A table of
executions predicts the next execution from the current one and the three before it. A table of
blocks holds the blocks that each execution used. The prefetcher follows both tables N executions
ahead, and stops at the first execution that it cannot predict. Blocks that are not predicted for
the next N executions are evicted before the room is needed, the least recently migrated ones first.
Blocks of freed tensors are dropped without a copy. Published N: 8, according to a model of DeepUM
in G10's artifact.

As published, an access to a slow page waits until the page has been fetched. In the simulator, only
accesses on paged tiers wait. On other tiers, a page whose prefetch is late is accessed in slow
memory. Blocks are the simulator's cells. Left out: the limited sizes of the tables, and the time of
the page fault that starts a chain of prefetches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.profile import Profile
from sentineld.plan.policy import MoveRequest, Observation, Reactor
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import (
    ReactivePolicy,
    Setting,
    exchange,
    without_move_limit,
)

AHEAD = (8, 1, 2, 4, 16, 32)
"""Numbers of executions for which blocks are prefetched. The published one comes first."""

HISTORY = 4
"""Number of executions by which the next one is predicted: the current one and three before it."""


@register()
class DeepUm(ReactivePolicy):
    """Policy `deepum`; see the module's docstring."""

    name = "deepum"
    published_s = 0.0

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [(f"{ahead} executions ahead", partial(Prefetcher, ahead=ahead)) for ahead in AHEAD]

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """A prefetcher for each value of AHEAD. It has no interval; see Reactive."""
        return [(setting, make(self.published_s)) for setting, make in self.settings()]


class Executions:
    """The table of executions: which one followed each sequence of HISTORY executions."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._last: deque[int] = deque(maxlen=HISTORY)

    def note(self, execution: int) -> None:
        """Record that this execution followed the last HISTORY executions."""
        if len(self._last) == HISTORY:
            self._next[tuple(self._last)] = execution
        self._last.append(execution)

    def predict(self, count: int) -> list[int]:
        """The next executions, at most `count`; the list ends before an unknown sequence."""
        last, found = self._last.copy(), list[int]()
        while len(found) < count and (following := self._next.get(tuple(last))) is not None:
            found.append(following)
            last.append(following)
        return found


class Prefetcher:
    """The policy's state: both tables, and the time of each block's last migration.

    tick() is called at every boundary.
    """

    def __init__(self, interval_ns: float, ahead: int = AHEAD[0]) -> None:
        """ahead: see AHEAD."""
        self.interval_ns = interval_ns
        self._ahead = ahead
        self._executions = Executions()
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
        self._executions.note(observation.stretch)
        wanted = self._predicted(observation.capacity_pages)
        rising = wanted[slow[wanted] > 0]
        idle = fast > 0
        idle[wanted] = False
        falling = np.flatnonzero(idle)
        falling = falling[np.argsort(self._migrated[falling], kind="stable")]
        # Predicted blocks that do not exist yet will be born, and need room, too.
        births = int(self._pages[wanted[fast[wanted] + slow[wanted] == 0]].sum())
        needed = births + int(slow[rising].sum()) - observation.free_pages
        return exchange(without_move_limit(observation), rising, falling, needed, births)

    def _predicted(self, capacity_pages: int) -> Integers:
        """The blocks of the next executions, the nearest first, as many as fit together."""
        executions = self._executions.predict(self._ahead)
        blocks = [self._blocks[execution] for execution in executions]
        every = np.concatenate([np.zeros(0, np.int64), *blocks])
        _, first = np.unique(every, return_index=True)
        wanted: Integers = every[np.sort(first)]
        return wanted[np.cumsum(self._pages[wanted]) <= capacity_pages]
