# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: a residency map holds the node of each page of a process; moves take time but
copy nothing.

The map takes the place of page tables: the shim records births and drops in the map, and the map
outlives the daemon. Moves are paced: a batch takes as long as its bytes need at the emulated
bandwidth. Its pages arrive one after the other. The daemon publishes a batch when the batch begins,
and updates the map's entries for its pages when the batch ends. Before the process reads the map,
for example at a boundary, the process itself updates the entries of the pages that have arrived by
then. Therefore a large batch, which takes less CPU time than several small ones, does not delay the
arrival of its pages. A batch that is interrupted has moved as many of its pages as the bandwidth
allowed until then.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sentineld.migrate.clock import Clock
from sentineld.migrate.process_memory import Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.protocol import FLIGHT_RANGES
from sentineld.model.tiers import Tiers
from sentineld.plan.move_queue import AHEAD_PAGES

BATCH_PAGES = 4096
"""Maximum number of pages in a batch. A batch of this size takes 20 ms at 0.83 GB/s. Larger batches
would hardly take less CPU time, because a boundary usually interrupts a batch earlier."""
SHARED_BATCH_PAGES = 64
"""Maximum number of pages in a batch if other processes' pages are moving. A batch of this size
takes 0.3 ms at 0.83 GB/s."""

Map = npt.NDArray[np.uint8]

Ranges = Sequence[tuple[int, int, int]]
"""Page ranges: (first page, number of pages, 0 for the arena or 1 for the heap)."""


class Flight(Protocol):
    """Publishes the batch in flight to the process; see FlightSegment."""

    def begin(self, ranges: Ranges, node: int, begin_ns: int, page_ns: float) -> None:
        """Publish a batch."""

    def end(self, arrived: int) -> None:
        """End the batch after its first `arrived` pages."""


class Residency(Protocol):
    """What the daemon and the process share about the process's pages; see ResidencySegment."""

    @property
    def maps(self) -> Mapping[Space, Map]:
        """The entry of each page of a space: 0 if the page is absent, else 1 + node."""

    @property
    def page_bytes(self) -> int:
        """Bytes per page."""

    @property
    def flight(self) -> Flight | None:
        """Publishes each batch; None: the process does not look for batches in flight."""

    def moved(self, pages: int) -> None:
        """Report that moves have changed the number of fast pages by `pages`, which can be
        negative."""

    def flying(self, pages: int) -> None:
        """Report the number of pages in flight to the fast tier. Their room is reserved, so that no
        birth takes it."""

    def fast_room(self) -> int | None:
        """Free pages of the fast tier, minus the pages in flight to it. Negative if the tier is
        overcommitted; None: unlimited."""


class _Unpublished:
    """A Flight for a process that does not look for batches in flight."""

    def begin(self, ranges: Ranges, node: int, begin_ns: int, page_ns: float) -> None:
        """Do nothing."""

    def end(self, arrived: int) -> None:
        """Do nothing."""


class _Run(NamedTuple):
    """Consecutive pages of a query or of a move, all in one space (arena or heap)."""

    space: Space
    page: int
    """The first page, counted from the start of the space."""
    entries: Map
    """The pages' entries in the map of the space."""


class EmulatedMemory:
    """A process's pages in the residency map; see Memory."""

    batch_pages = BATCH_PAGES
    ahead_pages = AHEAD_PAGES
    shared_batch_pages = SHARED_BATCH_PAGES
    exact = True
    waits = True

    def __init__(
        self,
        residency: Residency,
        spaces: Mapping[Space, tuple[int, int]],
        tiers: Tiers,
        bucket: TokenBucket,
        clock: Clock | None = None,
    ) -> None:
        """spaces: (start, bytes) of each space.
        bucket: the migration bandwidth, which several processes may share."""
        self._residency, self._tiers, self._bucket = residency, tiers, bucket
        self._page_bytes = residency.page_bytes
        self._flight: Flight = residency.flight or _Unpublished()
        # End a batch that was in flight when an earlier daemon ended.
        self._flight.end(0)
        residency.flying(0)
        self._clock = clock or Clock()
        self._wanted_ns = 0
        self._nodes, self._fast = np.zeros((2, 256), np.bool_)
        # The process can write any value into the map, so invalid nodes count as absent.
        self._statuses = np.full(256, -errno.ENOENT, np.int32)
        for tier in tiers.tiers:
            for node in tier.nodes:
                self._nodes[node + 1] = True
                self._statuses[node + 1] = node
        self._fast[[node + 1 for node in tiers.tiers[0].nodes]] = True
        maps, page_bytes = residency.maps, self._page_bytes
        self._spaces = {
            space: (start, start + min(size, len(maps[space]) * page_bytes), maps[space])
            for space, (start, size) in spaces.items()
        }

    def query_pages(self, pages: Addresses) -> Status:
        """Read the map; pages outside it are absent."""
        return self._status(self._runs(pages))

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        """Wait as long as the move takes, then set the pages' entries.

        A page that the process drops during the move stays absent, and a page that is born during
        the move stays where it is born. Pages for which the fast tier has no room stay where they
        are; the result's error is then ENOMEM. A move that `wait` interrupts ends with EINTR. So
        does a move that leaves pages for the next call: a move has at most FLIGHT_RANGES runs. If
        other processes' pages are moving, the move first waits for its turn, and then has at most
        shared_batch_pages pages.
        """
        runs = self._runs(pages)
        moving = self._elsewhere(runs, node)
        wanted = fitting = _pages(moving)
        if self._fast[node + 1]:
            # Publish an empty batch before the number of pages in flight changes: otherwise, the
            # process would subtract the last batch's arrived pages from the new number.
            self._flight.begin([], node, 0, 0.0)
            self._residency.flying(fitting)
            lacking = min(max(-(self._residency.fast_room() or 0), 0), fitting)
            if lacking:
                # Move the first pages only, as the kernel does when the node becomes full.
                fitting -= lacking
                self._residency.flying(fitting)
        arrived = self._pace(_first_pages(moving, fitting), node, wait)
        self._set(_first_pages(moving, arrived), node)
        self._residency.flying(0)
        error = errno.ENOMEM if fitting < wanted else 0
        if arrived < fitting:
            error = errno.EINTR
        return MoveResult(self._status(runs), error)

    def begin_series(self, since_ns: int) -> None:
        """Forfeit the bandwidth that was not used before since_ns; see TokenBucket.take()."""
        self._wanted_ns = since_ns

    def best_node(self, tier: int) -> tuple[int, int]:
        """Return the tier's first node, and the tier's capacity as its room."""
        found = self._tiers.tiers[tier]
        return found.nodes[0], found.capacity_bytes

    def close(self) -> None:
        """Forget the maps, so that they are unmapped."""
        self._spaces = {}

    def _pace(self, runs: list[_Run], node: int, wait: Wait | None) -> int:
        """Wait as long as the move of these pages takes; returns how many of them have arrived."""
        # Wait until earlier moves have ended before reserving bandwidth. Otherwise, reservations
        # would queue up: after an interrupted move, the bandwidth would stay unused until the time
        # that the next move has reserved.
        page_bytes, wanted = self._page_bytes, _pages(runs)
        runs = runs[:FLIGHT_RANGES]
        while (busy_ns := self._bucket.busy_ns(self._clock.now_ns(), page_bytes)) > 0:
            runs = _first_pages(runs, self.shared_batch_pages)
            if self._sleep(busy_ns, wait):
                return 0
        pages = _pages(runs)
        if not pages:
            return 0
        if pages < wanted and self._fast[node + 1]:
            self._residency.flying(pages)
        end_ns = self._bucket.take(pages * page_bytes, self._clock.now_ns(), self._wanted_ns)
        page_ns = self._bucket.duration_ns(page_bytes)
        ranges = [(run.page, len(run.entries), int(run.space == Space.HEAP)) for run in runs]
        self._flight.begin(ranges, node, end_ns - round(pages * page_ns), page_ns)
        while (left_ns := end_ns - self._clock.now_ns()) > 0:
            if self._sleep(left_ns, wait):
                left_ns = end_ns - self._clock.now_ns()
                pages -= self._bucket.give_back(pages, page_bytes, left_ns)
                break
        self._flight.end(pages)
        return pages

    def _sleep(self, duration_ns: int, wait: Wait | None) -> bool:
        """Sleep; returns early, with True, if the move has to end."""
        if wait is not None:
            return wait(duration_ns)
        self._clock.sleep(duration_ns)
        return False

    def _elsewhere(self, runs: list[_Run], node: int) -> list[_Run]:
        """The resident pages that are not on the node."""
        found = []
        for run in runs:
            movable = self._nodes[run.entries] & (run.entries != node + 1)
            found += _parts_of(run, movable)
        return found

    def _set(self, runs: list[_Run], node: int) -> None:
        """Put the resident pages on the node. The process may have put some of them there
        already."""
        changed = 0
        for run in runs:
            movable = self._nodes[run.entries]
            whole = np.count_nonzero(movable) == len(movable)
            before = run.entries if whole else run.entries[movable]
            changed += len(before) * bool(self._fast[node + 1])
            changed -= int(np.count_nonzero(self._fast[before]))
            run.entries[slice(None) if whole else movable] = node + 1
        self._residency.moved(changed)

    def _status(self, runs: list[_Run]) -> Status:
        status: Status
        if len(runs) == 1:
            status = self._statuses[runs[0].entries]
        else:
            status = np.concatenate([_NO_STATUS, *(self._statuses[run.entries] for run in runs)])
        return status

    def _runs(self, pages: Addresses) -> list[_Run]:
        """The pages as runs, in order. Pages outside all spaces are in runs with the entries of
        absent pages."""
        if not len(pages):
            return []
        breaks = ((pages[1:] - pages[:-1]) != self._page_bytes).nonzero()[0] + 1
        firsts = [0, *breaks.tolist()]
        runs: list[_Run] = []
        for first, last in zip(firsts, [*firsts[1:], len(pages)], strict=True):
            self._add_runs(runs, int(pages[first]), last - first)
        return runs

    def _add_runs(self, runs: list[_Run], address: int, pages: int) -> None:
        """Append the consecutive pages from `address` on: one run for each space, and for each gap
        between spaces."""
        while pages > 0:
            taken = pages
            for space, (start, end, entries) in self._spaces.items():
                if start <= address < end:
                    page = (address - start) // self._page_bytes
                    taken = min(pages, (end - address) // self._page_bytes)
                    runs.append(_Run(space, page, entries[page : page + taken]))
                    break
            else:
                starts = [start for start, _, _ in self._spaces.values() if start > address]
                if starts:
                    taken = min(pages, max((min(starts) - address) // self._page_bytes, 1))
                runs.append(_Run(Space.ARENA, 0, np.zeros(taken, np.uint8)))
            address += taken * self._page_bytes
            pages -= taken


_NO_STATUS = np.zeros(0, np.int32)


def _pages(runs: list[_Run]) -> int:
    """Number of pages of all runs together."""
    return sum(len(run.entries) for run in runs)


def _first_pages(runs: list[_Run], pages: int) -> list[_Run]:
    """The first `pages` pages of the runs, as runs."""
    taken: list[_Run] = []
    for run in runs:
        if pages < len(run.entries):
            return [*taken, run._replace(entries=run.entries[:pages])] if pages else taken
        taken.append(run)
        pages -= len(run.entries)
    return taken


def _parts_of(run: _Run, chosen: npt.NDArray[np.bool_]) -> list[_Run]:
    """The chosen pages of a run, as runs."""
    if np.count_nonzero(chosen) == len(chosen):
        return [run]
    edges = np.diff(chosen, prepend=False, append=False).nonzero()[0].tolist()
    return [
        _Run(run.space, run.page + first, run.entries[first:last])
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]
