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

    A stretch is charged by its fullest moment: what dies in it before another is
    born makes room for that one, as it does for the plan. overhead returns bytes
    that are charged beside the maps (small and fallback tensors).
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
        self._fast_nodes = spaces.tiers.tiers[FAST].nodes
        self._events = self._by_stretch()
        self._awaited = np.zeros(0, np.int64)  # pages that the stretch's births give

    def begin(self, stretch: int) -> None:
        """A stretch begins: its births are taken to be there, the process may be ahead of us."""
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is None:
            return
        absent = arena.nodes == ABSENT
        self._give_birth(self._births_of(stretch))
        self._awaited = np.flatnonzero(absent & (arena.nodes != ABSENT))

    def end(self, stretch: int) -> Table:
        """A stretch is over: take its drops off; returns them (DROP_DTYPE).

        Pages that were dropped and born again within the stretch are charged again.
        """
        drops = self.drops_of(stretch)
        self._awaited = self._awaited[:0]
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is not None and len(drops):
            for drop in drops:
                arena.drops(int(drop["offset"]), int(drop["bytes"]))
            births = self._births_of(stretch)
            self._give_birth(births[births["survives"]])
        return drops

    def charged_bytes(self, stretch: int) -> int:
        """Fast bytes charged in a stretch that has begun."""
        nodes = self._nodes_at_begin()
        arena_bytes = 0 if nodes is None else self._pass(nodes, stretch, begun=True)
        return arena_bytes + self._others_bytes() + int(self._step.heap_bytes[stretch])

    def room_bytes(self, stretch: int) -> int:
        """Bytes that may be promoted in this stretch without passing the budget in it or the next.

        The next stretch begins with this one's drops done; a demotion that is due
        at its own boundary frees nothing before it is done.
        """
        follower = (stretch + 1) % self._step.boundary_count
        nodes = self._nodes_at_begin()
        now_bytes = then_bytes = 0
        if nodes is not None:
            now_bytes = self._pass(nodes, stretch, begun=True)
            then_bytes = self._pass(nodes, follower)
        now_bytes += int(self._step.heap_bytes[stretch])
        then_bytes += int(self._step.heap_bytes[follower])
        room_bytes = self.budget_bytes - self._others_bytes()
        return max(0, room_bytes - max(now_bytes, then_bytes))

    def drops_of(self, stretch: int) -> Table:
        """What the process gives back in the stretch (DROP_DTYPE)."""
        return self._step.drops[self._drops[stretch] : self._drops[stretch + 1]]

    def _births_of(self, stretch: int) -> Table:
        return self._step.births[self._births[stretch] : self._births[stretch + 1]]

    def _give_birth(self, births: Table) -> None:
        arena = self.spaces.maps[Space.ARENA]
        for birth in births:
            node = self._birth_node(int(birth["tier"]))
            arena.births(int(birth["offset"]), int(birth["bytes"]), node)

    def _birth_node(self, tier: int) -> int:
        return self.spaces.tiers.tiers[FAST if tier == UNKNOWN_TIER else tier].nodes[0]

    def _others_bytes(self) -> int:
        """Charged beside the arena, apart from tensors that are yet to be born."""
        heap = self.spaces.maps.get(Space.HEAP)
        heap_bytes = 0 if heap is None else self._fast_pages(heap.nodes) * heap.page_bytes
        return heap_bytes + self._overhead()

    def _fast_pages(self, nodes: Nodes) -> int:
        return sum(int(np.count_nonzero(nodes == node)) for node in self._fast_nodes)

    def _nodes_at_begin(self) -> Nodes | None:
        """Of the arena's pages when the stretch began, with the moves that have been since."""
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is None:
            return None
        nodes = arena.nodes.copy()
        nodes[self._awaited] = ABSENT
        return nodes

    def _pass(self, nodes: Nodes, stretch: int, begun: bool = False) -> int:
        """Let a stretch pass over these nodes of the arena's pages; the most fast bytes of it.

        begun: it has, so that some of its births may have moved already.
        """
        arena = self.spaces.maps[Space.ARENA]
        fast = most = self._fast_pages(nodes)
        for node, pages in self._events[stretch]:
            part = nodes[pages]
            if node == ABSENT:
                fast -= self._fast_pages(part)
                part[:] = ABSENT
                continue
            absent = np.flatnonzero(part == ABSENT)
            born = np.full(len(absent), node, np.int8)
            if begun:
                now = arena.nodes[pages][absent]
                for fast_node in self._fast_nodes:
                    born[now == fast_node] = fast_node
            part[absent] = born
            fast += self._fast_pages(born)
            most = max(most, fast)
        return most * arena.page_bytes

    def _by_stretch(self) -> list[list[tuple[int, slice]]]:
        """For each stretch what happens to the arena's pages, in order: (node of birth, pages);
        ABSENT: they are dropped."""
        found: list[list[tuple[int, slice]]] = [[] for _ in range(self._step.boundary_count)]
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is None:
            return found
        for event in self._step.events:
            pages = arena.span(int(event["offset"]), int(event["bytes"]))
            node = self._birth_node(int(event["tier"])) if event["birth"] else ABSENT
            found[int(event["stretch"])].append((node, pages))
        return found
