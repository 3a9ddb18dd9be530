# SPDX-License-Identifier: Apache-2.0
"""Fast memory charged to a session while its steps run: what is there, and what will be born."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sentineld.migrate.expected import UNKNOWN_TIER, ExpectedStep, Table
from sentineld.migrate.residency import ABSENT, Nodes, Spaces
from sentineld.plan.model import Space

FAST = 0


class Charge:
    """The session's residency maps, kept up with the steps.

    A stretch is charged by its fullest moment: what dies in it before another is
    born makes room for that one, as it does for the plan. While the process waits
    at the stretch's begin nothing is born, and what is there counts alone.

    All calls but charged_bytes() come from the mover's thread.
    """

    def __init__(
        self,
        spaces: Spaces,
        step: ExpectedStep,
        waits: npt.NDArray[np.int32],
        budget_bytes: int,
        overhead: Callable[[], int],
    ) -> None:
        """waits: the layout's. overhead: bytes that are charged beside the maps (small and
        fallback tensors); must not block."""
        self.spaces = spaces
        self.budget_bytes = budget_bytes
        self._step = step
        self._waits = waits
        self._overhead = overhead
        count = step.boundary_count
        self._births = np.searchsorted(step.births["stretch"], np.arange(count + 1))
        self._drops = np.searchsorted(step.drops["stretch"], np.arange(count + 1))
        self._fast_nodes = spaces.tiers.tiers[FAST].nodes
        self._events = self._by_stretch()
        self._lock = threading.Lock()  # what is below and the arena's births go together
        self._now = 0
        self._begun = False
        self._awaited = np.zeros(0, np.int64)  # pages that the stretch's births give

    @property
    def stretch(self) -> int:
        """The one that began last."""
        return self._now % self._step.boundary_count

    def begin(self, now: int) -> None:
        """A stretch begins: its births are taken to be there, the process may be ahead of us.

        now: its boundary, counted since the first step.
        """
        with self._lock:
            self._now, self._begun = now, True
            arena = self.spaces.maps.get(Space.ARENA)
            if arena is None:
                return
            absent = arena.nodes == ABSENT
            self._give_birth(self._births_of(self.stretch))
            self._awaited = np.flatnonzero(absent & (arena.nodes != ABSENT))

    def end(self) -> Table:
        """The stretch is over: take its drops off; returns them (DROP_DTYPE).

        Pages that were dropped and born again within the stretch are charged again.
        """
        with self._lock:
            drops = self.drops_of(self.stretch)
            self._begun = False
            self._awaited = self._awaited[:0]
            arena = self.spaces.maps.get(Space.ARENA)
            if arena is not None and len(drops):
                for drop in drops:
                    arena.drops(int(drop["offset"]), int(drop["bytes"]))
                births = self._births_of(self.stretch)
                self._give_birth(births[births["survives"]])
            return drops

    def charged_bytes(self, done: int) -> int:
        """Fast bytes charged now. done: the boundary, counted since the first step, up to which
        all that barriers wait for is complete.

        A barrier may also time out, of which we hear at the next boundary: until then what was
        born behind it is not counted.
        """
        with self._lock:
            nodes = self._nodes_at_begin()
            if self._begun and not self._waits_for_more_than(done):
                return self._most_bytes(nodes, self.stretch, begun=True) + self._others_bytes()
            last = self.stretch - 1 if self._begun else self.stretch
            heap_bytes = int(self._step.heap_bytes[last])
            return self._fast_bytes(nodes) + heap_bytes + self._others_bytes()

    def room_bytes(self) -> int:
        """Bytes that may be promoted in this stretch without passing the budget in it or the next.

        The next stretch begins with this one's drops done; a demotion that is due
        at its own boundary frees nothing before it is done.
        """
        follower = (self.stretch + 1) % self._step.boundary_count
        nodes = self._nodes_at_begin()
        now_bytes = self._most_bytes(nodes, self.stretch, begun=True)
        then_bytes = self._most_bytes(nodes, follower)
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

    def _waits_for_more_than(self, done: int) -> bool:
        """Whether the barrier at the stretch's begin keeps the process until more is complete."""
        wait = int(self._waits[self.stretch])
        if wait < 0:
            return False
        return self._now - (self.stretch - wait) % self._step.boundary_count > done

    def _others_bytes(self) -> int:
        """Charged beside the arena, apart from tensors that are yet to be born."""
        heap = self.spaces.maps.get(Space.HEAP)
        return self._fast_bytes(None if heap is None else heap.nodes) + self._overhead()

    def _fast_bytes(self, nodes: Nodes | None) -> int:
        return 0 if nodes is None else self._fast_pages(nodes) * self.spaces.page_bytes

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

    def _most_bytes(self, nodes: Nodes | None, stretch: int, begun: bool = False) -> int:
        """The most fast bytes of a stretch, beside others, that finds the arena's pages on these
        nodes and passes over them. begun: it has, so that some of its births may have moved
        already."""
        most_pages = 0 if nodes is None else self._pass(nodes, stretch, begun)
        return most_pages * self.spaces.page_bytes + int(self._step.heap_bytes[stretch])

    def _pass(self, nodes: Nodes, stretch: int, begun: bool) -> int:
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
        return most

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
