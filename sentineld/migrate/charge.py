# SPDX-License-Identifier: Apache-2.0
"""Fast memory charged to a session as its steps run: resident pages and expected births."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from sentineld.migrate.arena_changes import ArenaChanges, birth_node
from sentineld.migrate.pending import Pages, no_pages
from sentineld.migrate.process_memory import Memory
from sentineld.migrate.residency_map import ABSENT, FAST, Nodes, PageMaps
from sentineld.migrate.stretch_pages import Event, StretchPages, up_to_last_birth
from sentineld.migrate.syscalls import Status
from sentineld.model.arrays import Mask, Table
from sentineld.model.plan import Space
from sentineld.plan.by_layer import PageTiers
from sentineld.plan.expected import ExpectedStep


@dataclass
class _Room:
    """The room for promotions: computed when it is first needed in a stretch, then updated with
    each move."""

    size_bytes: int
    """The room before unmanaged bytes are subtracted, or a lower bound on it; see `exact`."""
    exact: bool
    """Whether size_bytes is the room itself, not only a lower bound."""
    turnover: StretchPages
    """The arena pages that are born or dropped in this stretch or in the next one. A move of such a
    page may leave the room unchanged, so after the move size_bytes is only a lower bound."""


class Charge:
    """The session's residency maps, updated while the session's steps run.

    The charge of a stretch is the largest number of fast bytes at any moment of the stretch. So, as
    in the plan, a tensor that dies makes room for a later birth in the same stretch. While the
    process waits at a barrier, room is reserved for the births after the barrier, but these births
    are not charged yet.

    charged_bytes(), resident_bytes() and page_tiers() may be called from any thread. They never
    wait for the kernel. Results describe the moment of the last boundary that the mover has seen.
    The other methods may be called from the mover's thread only. Only this thread changes the maps,
    so it may read them, and query the kernel, without the lock.
    """

    def __init__(
        self,
        spaces: PageMaps,
        step: ExpectedStep,
        waits: npt.NDArray[np.int32],
        budget_bytes: int,
        unmanaged_bytes: Callable[[], int],
    ) -> None:
        """waits: Layout.waits.
        unmanaged_bytes: returns tensor bytes outside the maps; they are charged, too."""
        self.spaces = spaces
        self.budget_bytes = budget_bytes
        self.done = 0
        """The last boundary, counted since the first step, up to which all moves that barriers
        wait for are complete."""
        self.residency_known = False
        """Whether refresh() has read the maps. Before that, results leave out pages that were
        resident already."""
        self._step = step
        self._waits = waits
        self._unmanaged_bytes = unmanaged_bytes
        self._arena = spaces.maps[Space.ARENA]
        self._count = count = step.boundary_count
        bounds = np.searchsorted(step.drops["stretch"], np.arange(count + 1)).tolist()
        self._drops = [step.drops[first:last] for first, last in pairwise(bounds)]
        self._events = self._by_stretch()
        # By stretch: whether pages are dropped before the last birth.
        self._dips = [
            any(node == ABSENT for node, _ in up_to_last_birth(events)) for events in self._events
        ]
        self._heap_bytes: list[int] = step.heap_bytes.tolist()
        self._changes = ArenaChanges(self._arena, step, spaces.tiers)
        self._turnovers: dict[int, StretchPages] = {}  # by stretch; see _turnover()
        self._room: _Room | None = None  # used by the mover's thread only; None: not computed yet
        self._lock = threading.Lock()  # guards the maps and the fields below
        self._now = 0
        self._begun = False
        self._born_pages = no_pages()
        """Pages of the arena that the stretch's births made resident. `spaces` contains the births
        from the stretch's beginning on, although they may happen later."""
        self._moved = False
        """Whether pages of `_born_pages` may have been moved since they were born."""

    def begin(self, now: int) -> None:
        """Begin a stretch and apply all of its births. The process may be ahead of the mover, so
        any of these births may have happened.

        now: the stretch's boundary, counted since the first step.
        """
        self._room = None
        with self._lock:
            self._begin(now)

    def changing(self) -> set[int]:
        """The boundaries of a settled step at which the map changes: where a stretch ends that
        drops pages, and where one begins with births of pages that may be absent."""
        return self._changes.boundaries()

    @property
    def settled(self) -> bool:
        """Whether the map changes only at the boundaries changing()."""
        return self._changes.settled

    def skip(self, now: int) -> None:
        """End the stretch, and begin the one at boundary `now`. At this boundary and at those
        before it, the map must not change; see changing()."""
        self._room = None
        with self._lock:
            self._now, self._begun, self._moved = now, True, False
            self._born_pages = no_pages()

    def refresh(self, memory: Memory, now: int) -> int:
        """Read the maps from `memory`, then begin the stretch at boundary `now`, even if it has
        begun before. Returns the number of pages that changed. Raises ProcessLookupError if the
        process is gone."""
        self._room = None
        # The query can take arbitrarily long: the process may keep its address space locked.
        found = self.spaces.read(memory)
        with self._lock:
            changed = self.spaces.replace(found)
            self._changes.disturbed()
            self._begin(now)
            self.residency_known = True
        return changed

    def recheck(self, memory: Memory, pages: Pages, now: int) -> None:
        """Read the nodes of these pages of the arena from `memory`, in the stretch that began at
        `now`. Raises ProcessLookupError if the process is gone."""
        self._room = None
        # Without the lock, as in refresh().
        status = memory.query_pages(self._arena.addresses(pages))
        with self._lock:
            self._arena.apply(pages, status)
            self._changes.disturbed()
            born = np.setdiff1d(self._born_pages, pages)
            self._begin(now)
            self._born_pages = np.union1d(born, self._born_pages)
            self._moved = True

    def moved(self, space: Space, pages: Pages, status: Status) -> None:
        """Update the map with the statuses that a move_pages call has returned for these pages."""
        residency, room = self.spaces.maps[space], self._room
        before = None if room is None else residency.nodes[pages]
        fast_pages = residency.fast_pages
        failed = bool(len(status) and status.min() < 0)
        with self._lock:
            residency.apply(pages, status)
            if space == Space.ARENA:
                self._moved = True
                if failed and (residency.nodes[pages] == ABSENT).any():
                    self._changes.disturbed()
        if room is None or before is None:
            return
        if failed:
            # Some pages did not move. If they are absent, they may be born in fast memory in this
            # stretch or the next one, and then take room. So compute the room again when it is
            # next needed.
            self._room = None
            return
        grown = residency.fast_pages - fast_pages
        if space == Space.ARENA and (unsure := room.turnover.pages.has(pages)).any():
            # A demotion of a page of `turnover` may make no room, so it is not counted.
            after = residency.nodes[pages[unsure]]
            demoted = self._is_fast(before[unsure]) & ~self._is_fast(after)
            grown += int(np.count_nonzero(demoted))
            room.exact = False
        room.size_bytes -= grown * self.spaces.page_bytes

    def end(self) -> Table:
        """End the stretch and apply its drops; returns the drops (DROP_DTYPE).

        Pages that were dropped and then born again within the stretch stay charged.
        """
        self._room = None
        drops = self.drops_of(self._stretch)
        with self._lock:
            self._begun = False
            self._born_pages = no_pages()
            self._changes.end(self._stretch)
        return drops

    def charged_bytes(self, barriers_hold: bool = True) -> int:
        """Fast bytes charged now.

        barriers_hold: whether the process waits at each barrier until the barrier's moves are done.
        If not, the births of the current stretch are charged as soon as the stretch begins, even if
        the moves of the barrier at the stretch's beginning are not done.
        """
        with self._lock:
            stretch, born = self._moment(barriers_hold)
            fast, heap_pages = self._arena.fast_pages, self._heap_pages()
            changes = None  # the births and drops to compute the peak from, if necessary
            if not born:
                fast -= self._fast_pages(self._arena.nodes[self._born_pages])
            elif self._moved or self._dips[stretch]:
                # A page counts in the peak even if it was demoted after its birth, or dropped
                # before the last birth. If there is no such page, the number of fast pages is
                # largest after the last birth. The map contains all births, so this number is
                # `fast_pages`.
                turnover = self._turnover(stretch)
                nodes, now, fast = self._before_births(turnover)
                changes = turnover.rising[0]
        if changes is not None:
            fast, _ = self._peak(nodes, fast, changes, now)
        if born:
            planned_bytes = self._heap_bytes[stretch]
        else:
            # ExpectedStep.heap_bytes counts each tensor in all stretches in which it is alive. A
            # tensor that is alive at the boundary is counted in the stretch before the boundary
            # and in the stretch after it. So the bytes at the boundary are at most the smaller
            # of the two values.
            planned_bytes = min(self._heap_bytes[stretch - 1], self._heap_bytes[stretch])
        pages_bytes = (fast + heap_pages) * self.spaces.page_bytes
        return pages_bytes + planned_bytes + self._unmanaged_bytes()

    def resident_bytes(self, barriers_hold: bool = True) -> list[int]:
        """Bytes of arena and heap on each tier. All births of the stretch are included as soon as
        they may have happened. barriers_hold: see charged_bytes()."""
        with self._lock:
            _, born = self._moment(barriers_hold)
            pages = self.spaces.pages_by_tier()
            if not born:
                unborn = self._arena.count(self._arena.nodes[self._born_pages])
                pages = [held - later for held, later in zip(pages, unborn, strict=True)]
        return [count * self.spaces.page_bytes for count in pages]

    def page_tiers(self, barriers_hold: bool = True) -> PageTiers:
        """The tier of each page of arena and heap. Pages that resident_bytes() does not count are
        absent. barriers_hold: see charged_bytes()."""
        stretch, nodes = self._views(barriers_hold)
        tiers = {space: self.spaces.tiers_of(of_space) for space, of_space in nodes.items()}
        return PageTiers(stretch, tiers)

    def room_bytes(self, wanted_bytes: int | None = None) -> int:
        """Bytes that can be promoted now without exceeding the budget in this stretch or the next.

        The drops of this stretch make room in the next one. Demotions that are due at the
        next boundary make no room until they are done.

        wanted_bytes: if there is at least this much room, the result may be smaller than the room,
            but is not smaller than wanted_bytes. None: return the exact room.
        """
        unmanaged_bytes = self._unmanaged_bytes()
        if self._room is not None and not self._room.exact:
            known_bytes = self._room.size_bytes - unmanaged_bytes
            if wanted_bytes is None or known_bytes < wanted_bytes:
                self._room = None
        if self._room is None:
            self._room = self._exact_room()
        return max(0, self._room.size_bytes - unmanaged_bytes)

    def _exact_room(self) -> _Room:
        stretch, _ = self._moment(barriers_hold=False)
        turnover = self._turnover(stretch)
        nodes, now, fast = self._before_births(turnover)
        most = 0
        for at, events in enumerate([turnover.stretches[0], turnover.rising[1]]):
            peak, fast = self._peak(nodes, fast, events, None if at else now)
            heap_bytes = self._heap_bytes[(stretch + at) % self._count]
            most = max(most, peak * self.spaces.page_bytes + heap_bytes)
        most += self._heap_pages() * self.spaces.page_bytes
        return _Room(self.budget_bytes - most, True, turnover)

    def _turnover(self, stretch: int) -> StretchPages:
        """The arena pages that are born or dropped in this stretch or in the next one."""
        found = self._turnovers.get(stretch)
        if found is None:
            following = self._events[(stretch + 1) % self._count]
            found = self._turnovers[stretch] = StretchPages([self._events[stretch], following])
        return found

    def _before_births(self, turnover: StretchPages) -> tuple[Nodes, Nodes, int]:
        """The node of each page of `turnover` at the beginning of the stretch, the node of each of
        these pages now, and the number of the arena's fast pages at the beginning of the
        stretch."""
        now = turnover.take(self._arena.nodes)
        nodes, born = now.copy(), turnover.rows(self._born_pages)
        fast = self._arena.fast_pages - self._fast_pages(nodes[born])
        nodes[born] = ABSENT
        return nodes, now, fast

    def _heap_pages(self) -> int:
        """Number of fast pages of the heap."""
        return self.spaces.maps[Space.HEAP].fast_pages

    def drops_of(self, stretch: int) -> Table:
        """The ranges that the process drops in the stretch (DROP_DTYPE)."""
        return self._drops[stretch]

    @property
    def _stretch(self) -> int:
        return self._now % self._count

    def _moment(self, barriers_hold: bool) -> tuple[int, bool]:
        """The present stretch, and whether its births may have happened. Between two stretches,
        this method returns the next stretch, whose births `spaces` does not contain yet."""
        if not self._begun:
            return (self._now + 1) % self._count, False
        return self._stretch, not (barriers_hold and self._is_waited_for())

    def _views(self, barriers_hold: bool) -> tuple[int, dict[Space, Nodes]]:
        """The present stretch, and copies of the maps; pages whose births may not have happened yet
        are absent. Callers read the copies without the lock, because movers wait for it."""
        with self._lock:
            stretch, born = self._moment(barriers_hold)
            nodes = {space: one.nodes.copy() for space, one in self.spaces.maps.items()}
            if not born:
                nodes[Space.ARENA][self._born_pages] = ABSENT
        return stretch, nodes

    def _begin(self, now: int) -> None:
        self._now, self._begun, self._moved = now, True, False
        self._born_pages = self._changes.begin(self._stretch)

    def _is_waited_for(self) -> bool:
        """Whether the barrier before the stretch waits for moves that are not done."""
        wait = int(self._waits[self._stretch])
        if wait < 0:
            return False
        return self._now - (self._stretch - wait) % self._count > self.done

    def _is_fast(self, nodes: Nodes) -> Mask:
        return self.spaces.on_tier(nodes, FAST)

    def _fast_pages(self, nodes: Nodes) -> int:
        return int(np.count_nonzero(self._is_fast(nodes)))

    def _peak(
        self, nodes: Nodes, fast: int, events: Sequence[Event], now: Nodes | None
    ) -> tuple[int, int]:
        """The arena's largest number of fast pages during a stretch, and the number at its end.

        nodes: the node of each page of a StretchPages at the beginning of the stretch; changed in
            place to the nodes at the end of the stretch.
        fast: the number of fast pages of the arena at the beginning of the stretch.
        events: the births and drops of the stretch, from StretchPages.stretches; if only the peak
            is needed, from StretchPages.rising.
        now: the present node of each page in `nodes`; None if the stretch has not begun. A page
            that was born in the stretch may have been promoted since its birth.
        """
        most = fast
        for births, run in groupby(events, lambda event: event[0] != ABSENT):
            if births:
                fast += self._fast_births(nodes, list(run), now)
                most = max(most, fast)
                continue
            for _, pages in run:
                part = nodes[pages]
                fast -= self._fast_pages(part)
                part[:] = ABSENT
        return most, fast

    def _fast_births(self, nodes: Nodes, births: Sequence[Event], now: Nodes | None) -> int:
        """Apply consecutive births to `nodes`; returns the number of pages that appear in fast
        memory. nodes, now: see _peak()."""
        births = [(node, pages) for node, pages in births if pages.start < pages.stop]
        if not births:
            return 0
        first = min(pages.start for _, pages in births)
        part = nodes[first : max(pages.stop for _, pages in births)]
        born = np.full(len(part), ABSENT, np.int8)
        for node, pages in reversed(births):  # the first birth of a page is the last that is set
            born[pages.start - first : pages.stop - first] = node
        if now is not None:
            there = now[first : first + len(part)]
            promoted = self._is_fast(there) & (born != ABSENT)
            born[promoted] = there[promoted]
        born[part != ABSENT] = ABSENT
        np.maximum(part, born, out=part)
        return self._fast_pages(born)

    def _by_stretch(self) -> list[list[Event]]:
        """The births and drops of the arena's pages in each stretch, in order."""
        found: list[list[Event]] = [[] for _ in range(self._count)]
        for event in self._step.events:
            pages = self._arena.span(int(event["offset"]), int(event["bytes"]))
            node = birth_node(self.spaces.tiers, int(event["tier"])) if event["birth"] else ABSENT
            found[int(event["stretch"])].append((node, pages))
        return found
