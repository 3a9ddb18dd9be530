# SPDX-License-Identifier: Apache-2.0
"""Simulate consecutive steps under a plan. Each step begins in the state in which the previous step
ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.plan import Space
from sentineld.model.tiers import Overlap
from sentineld.plan.stall_trial import StallTrial
from sentineld.simulate.cells import Cells
from sentineld.simulate.script import Birth, Move, Script, Scripts
from sentineld.simulate.world import NEVER, Counts, Item, World


@dataclass(frozen=True)
class Step:
    """One simulated step."""

    ns: float
    """Time of the whole step, waits included."""
    slow_ns: float
    """The part of `ns` that is due to accesses to slow pages. Negative if they shorten the step,
    which can happen if the bandwidths of both tiers are used concurrently."""
    counts: Counts
    times_ns: Floats = field(repr=False, compare=False)
    """(S,), time that each stretch takes without slow accesses, births in the arena or waits."""
    slow_joules: float = 0.0
    """Additional energy of the step's accesses because pages are slow; 0 if it is not computed."""


class _Charges:
    """The time that accesses to slow pages add to a stretch; see AccessCosts (model/timing.py)."""

    def __init__(self, scripts: Scripts, script: Script, stretch: int, world: World) -> None:
        """Compute the part of the added time that is known when the stretch begins."""
        self._direct_ns = float(script.costs_ns[stretch] @ world.slow)
        self._hideable_ns = self._hidden_ns = 0.0
        self._assumed: dict[Birth, int] = {}
        self._overlaps = scripts.hidden_ns is not None
        if scripts.hidden_ns is not None:
            self._hidden_ns = float(scripts.hidden_ns[stretch])
            self._hideable_ns = float(script.hideable_ns[stretch] @ world.slow)
            # If accesses to both tiers overlap, slow accesses can shorten the stretch. At a
            # birth, it can be too late for this, because the clock may have passed the end of the
            # shortened stretch. So count the accesses to tensors that are born later in the stretch
            # now. Assume that these tensors will be born on the tiers that the plan gives them.
            for event in script.events[stretch] if scripts.overlap == Overlap.TIERS else ():
                if isinstance(event, Birth):
                    self._assumed[event] = world.slow_after_birth(event.low, event.high)
                    self._add(event, self._assumed[event])

    def born(self, birth: Birth, pages: int) -> float:
        """Account for a birth. Returns the time, in ns, by which the birth lengthens the stretch.
        pages: number of slow pages in the birth's cells after the birth."""
        before_ns = self.ns
        self._add(birth, pages - self._assumed.get(birth, 0))
        # Without overlap, compute the time directly: the difference of the two values of `ns` would
        # be the same, but with rounding errors.
        return self.ns - before_ns if self._overlaps else pages * birth.cost_ns

    @property
    def ns(self) -> float:
        """The known part of the time that slow accesses add to the stretch; negative if they
        shorten the stretch."""
        return self._direct_ns + max(self._hideable_ns - self._hidden_ns, 0.0)

    def _add(self, birth: Birth, pages: int) -> None:
        self._direct_ns += pages * birth.cost_ns
        self._hideable_ns += pages * birth.hideable_ns


class Replay:
    """Simulates steps under a plan, beginning at boundary 0 of step 0."""

    def __init__(
        self,
        scripts: Scripts,
        world: World,
        react: Callable[[int], None] | None = None,
        at_boundary: Callable[[], None] | None = None,
    ) -> None:
        """react: called at each boundary with the stretch that has just ended; queues the moves of
        a reactive policy. at_boundary: called at each boundary after the boundary's wait."""
        self.world = world
        self._scripts = scripts
        self._step = 0
        self._react = react
        self._at_boundary = at_boundary
        self.trial = StallTrial(scripts.stalls, len(scripts.times_ns))

    def begin(self, before: World | None = None) -> None:
        """Place the pages of persistent tensors.

        before: the state (World) at the end of the preceding steps. Pages start on the tiers that
            they have in this state and are then moved to the plan's initial tiers. None: place
            pages by first touch.
        """
        cells = self._scripts.cells
        if before is None:
            self._place_persistent(cells.pages)
        else:
            self._place_persistent(_fast_pages(before, cells))
            self._queue_misplaced(self._scripts.initial)

    def enter(self) -> None:
        """Place the pages of persistent tensors on the plan's initial tiers. Pages without an
        initial tier go to the slow tier. If the plan has no initial tiers, place pages by first
        touch."""
        pages, initial = self._scripts.cells.pages, self._scripts.initial
        wanted = np.zeros_like(pages) if initial else pages
        for low, high, tier in initial:
            wanted[low:high] = pages[low:high] * (tier == 0)
        self._place_persistent(wanted)

    def _place_persistent(self, wanted: Integers) -> None:
        """Place persistent tensors. wanted: (C,), see World.place()."""
        for cell in np.flatnonzero(self._scripts.cells.persistent).tolist():
            self.world.place(cell, cell + 1, wanted[cell : cell + 1])

    def step(self, factors: Floats | None = None) -> Step:
        """Simulate one step. factors: (S,), factors for the all-fast times of the stretches."""
        scripts, world = self._scripts, self.world
        script = scripts.steady if self._step else scripts.first
        times = scripts.times_ns if factors is None else scripts.times_ns * factors
        count, first = len(times), self._step * len(times)
        world.counts = Counts(peak_pages=world.fast_pages)
        began_ns, slow_ns, slow_joules = world.now_ns, 0.0, 0.0
        if not self._step:
            # A move may begin up to times.ahead boundaries before its planned boundary, so it can
            # enter the queue in the previous step. The first step has no previous step, so queue
            # such moves of the first step now.
            for begin, moves in enumerate(scripts.moves):
                for move in moves:
                    if begin + move.times.ahead >= count:
                        self._queue(move, begin + move.times.ahead - count)
        elif self._react is None:
            self._queue_misplaced(scripts.settled)
        for stretch in range(count):
            world.boundary = first + stretch
            self.trial.passed(world.boundary, world.now_ns)
            wait = scripts.waits[stretch]
            # On paged tiers, the process does not wait at boundaries: births and accesses wait in
            # the pager.
            if wait >= 0 and scripts.paged is None:
                due = first + wait - (count if wait > stretch else 0)
                world.wait_for(due)
            if self._react is not None:
                self._react((stretch - 1) % count)
            if self._at_boundary is not None:
                self._at_boundary()
            begin_ns = world.now_ns
            charges = _Charges(scripts, script, stretch, world)
            span_ns = float(times[stretch]) + charges.ns
            if script.joules is not None:
                slow_joules += float(script.joules[stretch] @ world.slow)
            if scripts.moves_yield:
                world.occupied(float(script.busy_ns[stretch] @ world.slow))
            if scripts.paged is not None:
                world.accessed(
                    script.busy_ns[stretch],
                    scripts.paged.touched[stretch],
                    scripts.paged.changed[stretch],
                    scripts.paged.back_ns[stretch],
                )
            for move in scripts.moves[stretch]:
                self._queue(move, world.boundary + move.times.ahead)
            for event in script.events[stretch]:
                world.run(max(world.now_ns, begin_ns + event.at * span_ns))
                if isinstance(event, Birth):
                    born_before, asked_ns = world.counts.born_pages, world.now_ns
                    slow = world.born(event.low, event.high, event.busy_ns)
                    late_ns = charges.born(event, slow)
                    slow_joules += slow * event.joules
                    made_ns = (world.counts.born_pages - born_before) * scripts.birth_ns
                    span_ns += late_ns + made_ns + (world.now_ns - asked_ns)
                else:
                    world.dropped(event.low, event.high)
            world.run(max(world.now_ns, begin_ns + span_ns))
            if scripts.paged is not None:
                world.wait_for_writes()
            slow_ns += charges.ns
        self._step += 1
        world.boundary = self._step * count
        return Step(world.now_ns - began_ns, slow_ns, world.counts, times, slow_joules)

    def _queue(self, move: Move, due: int) -> None:
        span = move.times.span(due, self.trial.stalls)
        self.world.queue.add(Item(move.low, move.high, move.tier, *span))

    def _queue_misplaced(self, targets: tuple[tuple[int, int, int], ...]) -> None:
        """Queue moves of the targets' pages that are on the wrong tier.

        targets: (low, high, tier) of cells. The plan assumes that these cells' pages are on the
            given tier, but has no moves to bring them there. The queued moves have no deadline.
        """
        world = self.world
        for low, high, tier in targets:
            wrong = world.slow[low:high] if tier == 0 else world.fast[low:high]
            if wrong.any():
                due = world.boundary
                world.queue.add(Item(low, high, tier, due, NEVER, NEVER))


def _fast_pages(before: World, cells: Cells) -> Integers:
    """(C,): how many pages of each heap cell were fast in the state `before`; see begin()."""
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
