# SPDX-License-Identifier: Apache-2.0
"""Runs a reactive policy in the simulator: at boundaries, the policy's Reactor gets the accesses
and requests moves. If observing the accesses delays the training, the clock advances by this delay
at the boundary."""

from __future__ import annotations

import numpy as np

from sentineld.model.profile import Profile
from sentineld.model.timing import Timing
from sentineld.plan.items import access_pages
from sentineld.plan.policy import DelayingReactor, Observation, Reactor
from sentineld.simulate.cells import Cells, page_costs, written_cells
from sentineld.simulate.loaded_latency import LoadedLatencies
from sentineld.simulate.world import NEVER, Item, World


class AccessFeed:
    """Counts page accesses. At the first boundary after each interval of reactor.interval_ns,
    reports the counts to the reactor and queues the moves that the reactor requests."""

    def __init__(
        self, profile: Profile, cells: Cells, timing: Timing, world: World, reactor: Reactor
    ) -> None:
        everything = np.ones(len(profile.accesses), np.bool_)
        # (stretches, cells): number of accesses in each stretch to one page of each cell.
        self._accesses = page_costs(profile, cells, access_pages(profile), everything)
        self._writes = written_cells(profile, cells)
        self._latencies = LoadedLatencies(profile, cells, timing)
        self._world = world
        self._reactor = reactor
        self._delaying = reactor if isinstance(reactor, DelayingReactor) else None
        self._gathered = np.zeros(len(cells.pages))
        self._written = np.zeros(len(cells.pages), np.bool_)
        self._asked_ns = world.now_ns
        self._fast, self._slow = world.fast.copy(), world.slow.copy()

    def passed(self, stretch: int) -> None:
        """Count the accesses of the stretch that just ended. If reactor.interval_ns have
        passed since the last request, replace the queued moves with those that the reactor
        requests."""
        world = self._world
        self._gathered += self._accesses[stretch]
        self._written |= self._writes[stretch]
        if self._latencies.depend_on_load:
            self._note_latencies(stretch)
        if world.now_ns - self._asked_ns < self._reactor.interval_ns:
            return
        requests = self._reactor.tick(self._observation(stretch))
        if self._delaying is not None:
            world.run(world.now_ns + self._delaying.delay_ns())
        world.queue.replace(
            [
                Item(
                    low=request.cell,
                    high=request.cell + 1,
                    tier=request.tier,
                    due=world.boundary,
                    deadline=NEVER,
                    expiry=NEVER,
                    left=request.pages,
                )
                for request in requests
            ]
        )
        self._gathered[:] = 0
        self._written[:] = False
        self._asked_ns = world.now_ns

    def _note_latencies(self, stretch: int) -> None:
        """Record the latencies of the stretch that has just ended. A page's accesses were served by
        the tier on which the page was when the stretch began. If the page was born in the stretch,
        its accesses were served by the tier on which it was born."""
        world = self._world
        absent = self._fast + self._slow == 0
        fast, slow = (
            np.where(absent, now, before)
            for now, before in ((world.fast, self._fast), (world.slow, self._slow))
        )
        self._latencies.passed(stretch, fast, slow)
        self._fast, self._slow = world.fast.copy(), world.slow.copy()

    def _observation(self, stretch: int) -> Observation:
        world = self._world
        move_pages = 0.0
        if world.mean_page_ns < float("inf"):
            move_pages = max(self._reactor.interval_ns, world.now_ns - self._asked_ns)
            move_pages = min(move_pages / world.mean_page_ns, float(NEVER))
        return Observation(
            now_ns=world.now_ns,
            stretch=stretch,
            accesses=self._gathered.copy(),
            written=self._written.copy(),
            fast=world.fast.copy(),
            slow=world.slow.copy(),
            free_pages=max(world.room(), 0),
            capacity_pages=NEVER if world.capacity_pages is None else world.capacity_pages,
            move_pages=int(move_pages),
            latencies_ns=self._latencies.take(),
        )
