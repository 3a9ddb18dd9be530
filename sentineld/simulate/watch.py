# SPDX-License-Identifier: Apache-2.0
"""A reactive policy at work: it sees accesses at boundaries, and the mover does what it wishes."""

from __future__ import annotations

import numpy as np

from sentineld.model.profile import Profile
from sentineld.plan.items import access_pages
from sentineld.plan.policy import Reactor, Sight
from sentineld.simulate.cells import Cells, page_costs
from sentineld.simulate.world import NEVER, Item, World


class Watch:
    """Gathers accesses, and asks the reactor when its interval is over."""

    def __init__(self, profile: Profile, cells: Cells, world: World, reactor: Reactor) -> None:
        everything = np.ones(len(profile.accesses), np.bool_)
        self._accesses = page_costs(profile, cells, access_pages(profile), everything)
        self._world = world
        self._reactor = reactor
        self._gathered = np.zeros(len(cells.pages))
        self._asked_ns = world.now_ns

    def passed(self, stretch: int) -> None:
        """A boundary passes; the stretch before it is over."""
        world = self._world
        self._gathered += self._accesses[stretch]
        if world.now_ns - self._asked_ns < self._reactor.interval_ns:
            return
        capacity = NEVER if world.capacity_pages is None else world.capacity_pages
        move_pages = 0.0
        if world.page_ns < float("inf"):
            move_pages = max(self._reactor.interval_ns, world.now_ns - self._asked_ns)
            move_pages = min(move_pages / world.page_ns, float(NEVER))
        wishes = self._reactor.tick(
            Sight(
                now_ns=world.now_ns,
                accesses=self._gathered.copy(),
                fast=world.fast.copy(),
                slow=world.slow.copy(),
                free_pages=max(world.room(), 0),
                capacity_pages=capacity,
                move_pages=int(move_pages),
            )
        )
        world.queue.replace(
            [
                Item(
                    low=wish.cell,
                    high=wish.cell + 1,
                    tier=wish.tier,
                    due=world.boundary,
                    deadline=NEVER,
                    expiry=NEVER,
                    left=wish.pages,
                )
                for wish in wishes
            ]
        )
        self._gathered[:] = 0
        self._asked_ns = world.now_ns
