# SPDX-License-Identifier: Apache-2.0
"""Fast memory charged to a session while its steps run: what is there, and what will be born."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sentineld.migrate.expected import UNKNOWN_TIER, ExpectedStep, Table
from sentineld.migrate.residency import ABSENT, Nodes, Spaces
from sentineld.plan.model import Space

FAST = 0


class Charge:
    """The session's residency maps, kept up with the steps.

    overhead returns bytes that are charged beside
    the maps (small and fallback tensors).
    """

    def __init__(
        self,
        spaces: Spaces,
        step: ExpectedStep,
        budget_bytes: int,
        overhead: Callable[[], int],
    ) -> None:
        self.spaces = spaces
        self.budget_bytes = budget_bytes
        self._step = step
        self._overhead = overhead
        count = step.boundary_count
        self._births = np.searchsorted(step.births["stretch"], np.arange(count + 1))
        self._drops = np.searchsorted(step.drops["stretch"], np.arange(count + 1))

    def begin(self, stretch: int) -> None:
        """A stretch begins: charge its births at once, the process may be ahead of us."""
        self._give_birth(self._births_of(stretch))

    def end(self, stretch: int) -> Table:
        """A stretch is over: take its drops off; returns them (DROP_DTYPE).

        Pages that were dropped and born again within the stretch are charged again.
        """
        drops = self.drops_of(stretch)
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is not None and len(drops):
            for drop in drops:
                arena.drops(int(drop["offset"]), int(drop["bytes"]))
            births = self._births_of(stretch)
            self._give_birth(births[births["survives"]])
        return drops

    def charged_bytes(self, stretch: int) -> int:
        """Fast bytes charged in a stretch that has begun."""
        return self.spaces.by_tier()[FAST] + self._overhead() + int(self._step.heap_bytes[stretch])

    def room_bytes(self, stretch: int) -> int:
        """Bytes that may be promoted in this stretch without passing the budget in it or the next.

        The next stretch begins with this one's drops done; a demotion that is due
        at its own boundary frees nothing before it is done.
        """
        room = self.budget_bytes - self.charged_bytes(stretch)
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is None:
            return max(0, room)
        follower = (stretch + 1) % self._step.boundary_count
        now = room - self._unborn_bytes(arena.nodes, stretch)
        nodes = arena.nodes.copy()
        for drop in self.drops_of(stretch):
            nodes[arena.span(int(drop["offset"]), int(drop["bytes"]))] = ABSENT
        dropped = nodes != arena.nodes
        fast = np.isin(arena.nodes[dropped], self.spaces.tiers.tiers[FAST].nodes)
        freed = int(np.count_nonzero(fast)) * arena.page_bytes
        grown = int(self._step.heap_bytes[follower] - self._step.heap_bytes[stretch])
        then = room + freed - grown
        return max(0, min(now, then - self._unborn_bytes(nodes, follower)))

    def drops_of(self, stretch: int) -> Table:
        """What the process gives back in the stretch (DROP_DTYPE)."""
        return self._step.drops[self._drops[stretch] : self._drops[stretch + 1]]

    def _births_of(self, stretch: int) -> Table:
        return self._step.births[self._births[stretch] : self._births[stretch + 1]]

    def _give_birth(self, births: Table) -> None:
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is None:
            return
        for birth in births:
            tier = FAST if birth["tier"] == UNKNOWN_TIER else int(birth["tier"])
            node = self.spaces.tiers.tiers[tier].nodes[0]
            arena.births(int(birth["offset"]), int(birth["bytes"]), node)

    def _unborn_bytes(self, nodes: Nodes, stretch: int) -> int:
        """Bytes of the stretch's fast births whose pages aren't there in these nodes."""
        arena = self.spaces.maps[Space.ARENA]
        births = self._births_of(stretch)
        births = births[(births["tier"] == FAST) | (births["tier"] == UNKNOWN_TIER)]
        pages = 0
        for birth in births:
            part = nodes[arena.span(int(birth["offset"]), int(birth["bytes"]))]
            pages += int(np.count_nonzero(part == ABSENT))
        return pages * arena.page_bytes
