# SPDX-License-Identifier: Apache-2.0
"""Fast memory charged to a session while its steps run: what is there, and what will be born."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.migrate.memory import Memory
from sentineld.migrate.moves import Pages
from sentineld.migrate.residency_map import ABSENT, Nodes, Spaces
from sentineld.migrate.syscalls import Status
from sentineld.model.arrays import Table
from sentineld.model.plan import Space
from sentineld.plan.expected import UNKNOWN_TIER, ExpectedStep

FAST = 0


@dataclass(frozen=True)
class _Look:
    """The maps at one moment. born: the stretch's births may be there; arena has them all, on the
    pages given."""

    stretch: int
    born: bool
    arena: Nodes
    given: npt.NDArray[np.int64]
    heap: Nodes

    def without_births(self) -> Nodes:
        """Of the arena's pages when the stretch began, with the moves that have been since."""
        nodes = self.arena.copy()
        nodes[self.given] = ABSENT
        return nodes


class Charge:
    """The session's residency maps, kept up with the steps.

    A stretch is charged by its fullest moment: what dies in it before another is
    born makes room for that one, as it does for the plan. Nothing is born while the
    process waits at the barrier before it: room is left for it, but it is not charged.

    charged_bytes() and resident_bytes() may be called from any thread, all else
    from the mover's: they tell of the process as far as that has followed it.
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
        self.done = 0
        """The boundary, counted since the first step, up to which all that barriers wait for is
        complete."""
        self._step = step
        self._waits = waits
        self._overhead = overhead
        count = step.boundary_count
        self._births = np.searchsorted(step.births["stretch"], np.arange(count + 1))
        self._drops = np.searchsorted(step.drops["stretch"], np.arange(count + 1))
        self._fast_nodes = spaces.tiers.tiers[FAST].nodes
        self._events = self._by_stretch()
        # What is below and the maps change together.
        self._lock = threading.Lock()
        self._now = 0
        self._begun = False
        self._given = np.zeros(0, np.int64)  # pages of the arena, by the stretch's births

    def begin(self, now: int) -> None:
        """A stretch begins: its births are taken to be there, the process may be ahead of us.

        now: its boundary, counted since the first step.
        """
        with self._lock:
            self._begin(now)

    def refresh(self, memory: Memory, now: int) -> int:
        """Take over the kernel's truth in the stretch that begins, or has begun; the number of
        pages that were other than thought. Raises ProcessLookupError."""
        with self._lock:
            changed = self.spaces.refresh(memory)
            self._begin(now)
        return changed

    def moved(self, space: Space, pages: Pages, status: Status) -> None:
        """Take over what move_pages said of these pages."""
        with self._lock:
            self.spaces.maps[space].apply(pages, status)

    def end(self) -> Table:
        """The stretch is over: take its drops off; returns them (DROP_DTYPE).

        Pages that were dropped and born again within the stretch are charged again.
        """
        drops = self.drops_of(self._stretch)
        with self._lock:
            self._begun = False
            self._given = np.zeros(0, np.int64)
            arena = self.spaces.maps.get(Space.ARENA)
            if arena is not None and len(drops):
                for drop in drops:
                    arena.drops(int(drop["offset"]), int(drop["bytes"]))
                births = self._births_of(self._stretch)
                self._give_birth(births[births["survives"]])
        return drops

    def charged_bytes(self, barriers_hold: bool = True) -> int:
        """Fast bytes charged now. barriers_hold: the process waits at barriers for what they wait
        for; else births behind them count, too."""
        look = self._look(barriers_hold)
        if look.born:
            most_bytes = self._most_bytes(look.without_births(), look.stretch, look.arena)
            return most_bytes + self._others_bytes(look)
        # What is unplanned and alive between two stretches is so in both.
        heap_bytes = min(self._step.heap_bytes[[look.stretch - 1, look.stretch]])
        return self._fast_bytes(look.without_births()) + int(heap_bytes) + self._others_bytes(look)

    def resident_bytes(self, barriers_hold: bool = True) -> list[int]:
        """Bytes of arena and heap on each tier, with all of the stretch's births once they may be
        there. barriers_hold: as for charged_bytes()."""
        look = self._look(barriers_hold)
        arena_bytes = self.spaces.bytes_by_tier(look.arena if look.born else look.without_births())
        return [int(size) for size in arena_bytes + self.spaces.bytes_by_tier(look.heap)]

    def room_bytes(self) -> int:
        """Bytes that may be promoted in this stretch without passing the budget in it or the next.

        The next stretch begins with this one's drops done; a demotion that is due
        at its own boundary frees nothing before it is done.
        """
        look = self._look(barriers_hold=False)
        follower = (look.stretch + 1) % self._step.boundary_count
        nodes = look.without_births()
        now_bytes = self._most_bytes(nodes, look.stretch, look.arena)
        then_bytes = self._most_bytes(nodes, follower)
        room_bytes = self.budget_bytes - self._others_bytes(look)
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

    @property
    def _stretch(self) -> int:
        return self._now % self._step.boundary_count

    def _look(self, barriers_hold: bool) -> _Look:
        with self._lock:
            arena, heap = (self._nodes(space) for space in (Space.ARENA, Space.HEAP))
            if not self._begun:
                # Between two stretches: nobody knows yet whether the next one's births wait.
                follower = (self._now + 1) % self._step.boundary_count
                return _Look(follower, False, arena, self._given, heap)
            born = not (barriers_hold and self._is_waited_for())
            return _Look(self._stretch, born, arena, self._given, heap)

    def _nodes(self, space: Space) -> Nodes:
        residency = self.spaces.maps.get(space)
        return np.zeros(0, np.int8) if residency is None else residency.nodes.copy()

    def _begin(self, now: int) -> None:
        self._now, self._begun = now, True
        arena = self.spaces.maps.get(Space.ARENA)
        if arena is None:
            return
        absent = arena.nodes == ABSENT
        self._give_birth(self._births_of(self._stretch))
        self._given = np.flatnonzero(absent & (arena.nodes != ABSENT))

    def _is_waited_for(self) -> bool:
        """Whether the barrier before the stretch waits for what is not complete."""
        wait = int(self._waits[self._stretch])
        if wait < 0:
            return False
        return self._now - (self._stretch - wait) % self._step.boundary_count > self.done

    def _others_bytes(self, look: _Look) -> int:
        """Charged beside the arena, apart from tensors that are yet to be born."""
        return self._fast_bytes(look.heap) + self._overhead()

    def _fast_bytes(self, nodes: Nodes) -> int:
        return self._fast_pages(nodes) * self.spaces.page_bytes

    def _fast_pages(self, nodes: Nodes) -> int:
        return sum(int(np.count_nonzero(nodes == node)) for node in self._fast_nodes)

    def _most_bytes(self, nodes: Nodes, stretch: int, now: Nodes | None = None) -> int:
        """The most fast bytes of a stretch that finds the arena's pages on these nodes, and passes
        over them. now: of a stretch that has begun, where the pages are, births that have moved
        already among them."""
        fast = most = self._fast_pages(nodes)
        for node, pages in self._events[stretch]:
            part = nodes[pages]
            if node == ABSENT:
                fast -= self._fast_pages(part)
                part[:] = ABSENT
                continue
            absent = np.flatnonzero(part == ABSENT)
            born = np.full(len(absent), node, np.int8)
            if now is not None:
                there = now[pages][absent]
                for fast_node in self._fast_nodes:
                    born[there == fast_node] = fast_node
            part[absent] = born
            fast += self._fast_pages(born)
            most = max(most, fast)
        return most * self.spaces.page_bytes + int(self._step.heap_bytes[stretch])

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
