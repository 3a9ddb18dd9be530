# SPDX-License-Identifier: Apache-2.0
"""Steps under a plan, one after the other, in a world that they leave as they find it next time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.plan import Plan, Space
from sentineld.simulate.cells import Cells
from sentineld.simulate.script import Birth, Move, Scripts
from sentineld.simulate.world import NEVER, Counts, Item, World


@dataclass(frozen=True)
class Step:
    """One simulated step. ns: all of it, its waits included; slow_ns: of these, what slow accesses
    cost. times_ns: (S,), what its stretches took without slow accesses, births and waits."""

    ns: float
    slow_ns: float
    counts: Counts
    times_ns: Floats = field(repr=False, compare=False)


class Replay:
    """A plan being carried out. World and plan begin at boundary 0 of step 0. watcher: is told at
    each boundary which stretch has passed. looker: is called at each, once it is passed."""

    def __init__(
        self,
        scripts: Scripts,
        world: World,
        watcher: Callable[[int], None] | None = None,
        looker: Callable[[], None] | None = None,
    ) -> None:
        self.world = world
        self._scripts = scripts
        self._step = 0
        self._watcher = watcher
        self._looker = looker
        self._waits, self._stalls = scripts.waits, scripts.stalls_for_promotions

    def begin(self, before: World | None = None) -> None:
        """Give lasting pages their places: those of the world before, where there is one, from
        where they are then moved to where the plan wants them; else by first touch."""
        cells, world = self._scripts.cells, self.world
        carried = None if before is None else _fast_pages(before, cells)
        for cell in np.flatnonzero(cells.lasting).tolist():
            if carried is None:
                world.place(cell, cell + 1, cells.pages[cell : cell + 1])
            else:
                world.place(cell, cell + 1, carried[cell : cell + 1])
        if carried is not None:
            self._put_right(self._scripts.initial)

    def follow(self, plan: Plan) -> None:
        """Go on under a plan that differs from this one in its waits alone."""
        self._waits = tuple(plan.layout.waits.tolist())
        self._stalls = plan.stalls_for_promotions

    def step(self, factors: Floats | None = None) -> Step:
        """Pass one step. factors: (S,), of this step's all-fast times."""
        scripts, world = self._scripts, self.world
        script = scripts.steady if self._step else scripts.first
        times = scripts.times_ns if factors is None else scripts.times_ns * factors
        count, first = len(times), self._step * len(times)
        world.counts = Counts(peak_pages=world.fast_pages)
        began_ns, slow_ns = world.now_ns, 0.0
        if not self._step:
            # What might have begun in the step before.
            for begin, moves in enumerate(scripts.moves):
                for move in moves:
                    if begin + move.times.ahead >= count:
                        self._queue(move, begin + move.times.ahead - count)
        elif self._watcher is None:
            self._put_right(scripts.settled)
        for stretch in range(count):
            world.boundary = first + stretch
            wait = self._waits[stretch]
            if wait >= 0:
                due = first + wait - (count if wait > stretch else 0)
                world.wait_for(due, self._stalls)
            if self._watcher is not None:
                self._watcher((stretch - 1) % count)
            if self._looker is not None:
                self._looker()
            begin_ns = world.now_ns
            cost_ns = float(script.costs_ns[stretch] @ world.slow)
            span_ns = float(times[stretch]) + cost_ns
            for move in scripts.moves[stretch]:
                self._queue(move, world.boundary + move.times.ahead)
            for event in script.events[stretch]:
                world.run(max(world.now_ns, begin_ns + event.at * span_ns))
                if isinstance(event, Birth):
                    born_before = world.counts.born_pages
                    late_ns = world.born(event.low, event.high) * event.cost_ns
                    made_ns = (world.counts.born_pages - born_before) * scripts.birth_ns
                    cost_ns += late_ns
                    span_ns += late_ns + made_ns
                else:
                    world.dropped(event.low, event.high)
            world.run(max(world.now_ns, begin_ns + span_ns))
            slow_ns += cost_ns
        self._step += 1
        world.boundary = self._step * count
        return Step(world.now_ns - began_ns, slow_ns, world.counts, times)

    def _queue(self, move: Move, due: int) -> None:
        span = move.times.span(due, self._stalls)
        self.world.queue.add(Item(move.low, move.high, move.tier, *span))

    def _put_right(self, targets: tuple[tuple[int, int, int], ...]) -> None:
        """Have pages moved that are not where they are to stay. There is no hurry, but plans count
        upon them."""
        world = self.world
        for low, high, tier in targets:
            wrong = world.slow[low:high] if tier == 0 else world.fast[low:high]
            if wrong.any():
                due = world.boundary
                world.queue.add(Item(low, high, tier, due, NEVER, NEVER))


def _fast_pages(before: World, cells: Cells) -> Integers:
    """For each cell how many of its pages were fast in another world, by their places in the
    heap."""
    old = before.cells
    ends = (old.first + old.pages)[old.space == Space.HEAP]
    span = int(max(ends.max(initial=0), int((cells.first + cells.pages).max(initial=0))))
    fast = np.zeros(span + 1, np.int64)
    for cell in np.flatnonzero((old.space == Space.HEAP) & (before.fast > 0)).tolist():
        first = int(old.first[cell])
        fast[first : first + int(before.fast[cell])] = 1
    sums = np.concatenate([[0], np.cumsum(fast)])
    found = np.where(
        cells.space == Space.HEAP, sums[cells.first + cells.pages] - sums[cells.first], 0
    )
    return np.asarray(found, dtype=np.int64)
