# SPDX-License-Identifier: Apache-2.0
"""Policies `swapadvisor` and `swapadvisor+slow`: genetic search over plans from Belady's algorithm.

Based on SwapAdvisor (Huang, Jin and Li, ASPLOS 2020). The input of its swap planner is a step with
a given order of operators and a given memory allocation. If a pool of memory has no room for the
tensors that are needed next, the planner swaps out a victim: the tensor of this pool whose next use
is furthest in the future (Belady). The planner makes two passes. The second pass begins with those
tensors in memory that were in memory at the end of the first pass, so that a step ends as it
begins. Tensors are swapped back in as soon as there is room for them. A genetic search varies the
order of the operators and the mapping of tensor sizes to pools. Its fitness is the step time that a
dataflow simulator predicts; parents are chosen by softmax of the fitness and crossed at one random
point, and their children are mutated gene by gene.

Adapted to memory tiers: there is one slow tier, transfers in both directions share the time of a
stretch, and stretches replace operators. A victim is swapped out right after its latest use, not
when its room is needed. If the bandwidth does not suffice for a victim, the next candidate is
taken. The order of operators is fixed by the training and cannot be changed here. Instead of
genes for this order, there are genes for the placement, which decide for each tensor whether it may
be a victim. The planner ignores addresses: memory cannot fragment, and a pool is an amount of
memory, not an address range. This amount is the largest number of the pool's pages that one stretch
uses, plus a part of the remaining budget, which is divided among the pools in proportion to their
other live pages. All transfers of a plan fit into the bandwidth, so no wait has to be simulated.
The fitness is the time of slow accesses. If slow memory can't be accessed, the fitness is the
number of pages in excess of the budget, integrated over time.

The original searches for about an hour. Here, a search evaluates at most EVALUATIONS plans, fewer
for large steps (WORK), with a fixed seed.

`swapadvisor` never accesses slow memory, as on a GPU. If it can't make everything fit, it fails
with the error "infeasible as published". `swapadvisor+slow` is our extension: a gene may also place
a tensor on the slow tier for its whole life. If a plan still does not fit, more tensors stay slow,
chosen by the lowest cost per freed page. The policy tries all values in MUTATIONS and keeps the
plan with the shortest predicted step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.tiers import Tiers
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import register
from sentineld.policies.rivals.fixed import slow_costs_ns
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, Gap, gaps, leave_slow, swappable

MUTATIONS = (0.02, 0.1)
"""Values of the probability that a gene of a child changes."""

POOLS = 4
"""Limit on the number of pools."""

SIZE_CLASSES = 32
"""Number of size classes: class k has the tensors of 2^(k-1) to 2^k - 1 pages."""

POPULATION = 6
EVALUATIONS, EVALUATIONS_MIN = 24, 12
WORK = 3_000_000
"""A search evaluates at most WORK / (number of pairs (gap, stretch)) plans. This limit is clamped
to the range from EVALUATIONS_MIN to EVALUATIONS."""

TEMPERATURE = 0.3
"""Temperature of the softmax, as a share of the difference between the population's worst and best
cost."""

PASSES = 2
SEED = 2020

MANAGED, PINNED, SLOW = range(3)
"""Values of a tensor's gene. MANAGED: the tensor may be a victim. PINNED: the tensor stays fast.
SLOW: the tensor is slow for its whole life."""


@register("swapadvisor", False)
@register("swapadvisor+slow", True)
class SwapAdvisor(SwappingPolicy):
    """Policies `swapadvisor` and `swapadvisor+slow`, which try several mutation probabilities."""

    sweep = MUTATIONS
    obstacle = "no plan of the genetic search makes room"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of MUTATIONS."""
        step = Step.of(book, slow_costs_ns(book.profile, tiers), self.accesses_slow)
        evaluated = placed = 0
        if book.over.any() and (self.accesses_slow or step.fits_in_use()):
            genes, evaluated = search(step, value)
            found = step.planned(genes)
            placed = int(np.count_nonzero(genes[SIZE_CLASSES:] == SLOW))
            book.occupied, book.usage, book.lanes = found.occupied, found.usage, found.lanes
            book.slow, book.swaps = found.slow, found.swaps
        slow = f", {placed} tensors placed in slow memory" if placed else ""
        return f"best of {evaluated} plans, mutation probability {value:.0%}{slow}"

    def improve(self, book: Book) -> None:
        """Swap tensors back in as early as room and bandwidth allow."""
        book.hasten()


@dataclass(frozen=True)
class Step:
    """The planner's data about a step: N tensors with G gaps (see Gap in swaps.py)."""

    book: Book  # without swaps
    cost_ns: Floats  # (T,): time that each tensor costs if it is slow
    accesses_slow: bool
    tensors: Integers  # (N,): rows of the profile
    pages: Integers  # (N,)
    size_class: Integers  # (N,)
    lives: Mask  # (N, S): whether a tensor is alive in a stretch
    in_use: Mask  # (N, S): whether a tensor is used or born in a stretch
    gaps: list[Gap]
    gap_item: Integers  # (G,): index of the gap's tensor in `tensors`
    until: Integers  # (G, S): number of stretches until the next use; 0 outside the gap
    victims: list[Integers]  # by stretch: the gaps that contain it, the furthest next use first
    wraps: Mask  # (G,): whether the step ends before the next use
    # (S,): fast pages of each stretch that are not in a pool. This is the book's usage minus the
    # pages of those of the N tensors that are alive in the stretch. It can be negative if some of
    # these tensors live one after another within the stretch and share their room.
    other_pages: Integers

    @staticmethod
    def of(book: Book, cost_ns: Floats, accesses_slow: bool) -> Step:
        """Derive the planner's data about a step from a book without swaps."""
        profile, count = book.profile, book.profile.stretch_count
        tensors = np.flatnonzero(swappable(profile, book.short) & ~book.slow)
        item_of = np.full(len(profile.tensors), -1)
        item_of[tensors] = np.arange(len(tensors))
        lives, in_use = (np.zeros((len(tensors), count), np.bool_) for _ in range(2))
        for item, tensor in enumerate(tensors.tolist()):
            lives[item, book.lived(tensor)] = True
            in_use[item, book.birth[tensor]] = True
        in_use[profile.tensors["slot"][tensors] < 0] = False
        item = item_of[profile.accesses["tensor"]]
        in_use[item[item >= 0], profile.accesses["stretch"][item >= 0]] = True
        found = gaps(book)
        until = np.zeros((len(found), count), np.int64)
        for at, gap in enumerate(found):
            until[at, book.between(gap)] = np.arange(gap.until - gap.since - 1, 0, -1)
        order = np.argsort(-until, axis=0, kind="stable")
        pages = tensor_pages(profile)[tensors]
        return Step(
            book,
            cost_ns,
            accesses_slow,
            tensors,
            pages,
            np.minimum(np.frexp(pages)[1], SIZE_CLASSES - 1),
            lives,
            in_use,
            found,
            item_of[np.array([gap.tensor for gap in found], np.int64)],
            until,
            [order[: np.count_nonzero(until[:, at]), at] for at in range(count)],
            np.array([book.birth[gap.tensor] + gap.until >= count for gap in found], np.bool_),
            book.usage - pages @ lives,
        )

    def fits_in_use(self) -> bool:
        """Whether, for every stretch, the tensors that the stretch uses fit into fast memory."""
        return bool((self.other_pages + self.pages @ self.in_use <= self.book.limit).all())

    def planned(self, genes: Integers) -> Book:
        """The book of the planner's last pass. genes: see search()."""
        book, taken, initial = self.book, np.zeros(0, np.int64), np.zeros(0, np.int64)
        for _ in range(PASSES):
            book, taken = self.one_pass(genes, initial)
            # The gaps whose tensors are in slow memory at the end of the step.
            initial = taken[self.wraps[taken]]
        return book

    def cost(self, genes: Integers) -> float:
        """The cost of a plan: the time of slow accesses or, if slow memory can't be accessed, the
        pages in excess of the budget, integrated over time. If slow memory can be accessed, but the
        short-lived tensors alone exceed the budget, the cost is infinite."""
        book = self.planned(genes)
        if not self.accesses_slow:
            excess = np.maximum(book.usage - book.limit, 0)
            return float(excess @ book.profile.stretches["time_ns"].astype(np.float64))
        try:
            leave_slow(book, self.cost_ns)
        except SentinelError:
            return float("inf")
        return float(self.cost_ns[book.slow & ~self.book.slow].sum())

    def one_pass(self, genes: Integers, initial: Integers) -> tuple[Book, Integers]:
        """Make one pass over the step; return the book, and the gaps in which tensors are swapped
        out.

        initial: gaps whose tensors are in slow memory when the step begins.
        """
        book, placement = self.book.copy(), genes[SIZE_CLASSES:]
        for tensor in self.tensors[placement == SLOW].tolist():
            book.make_slow(tensor)
        pool = genes[self.size_class]
        rooms = self._rooms(pool, placement)
        fast = np.where(placement == SLOW, 0, self.pages)
        usage = np.array([np.where(pool == one, fast, 0) @ self.lives for one in range(POOLS)])
        gap_pool = pool[self.gap_item]
        left = placement[self.gap_item] == MANAGED
        taken: list[int] = []
        # For each gap: a swap in this gap makes room only in stretches whose distance to the next
        # use lies in the range from `last` to `first`. Each added swap can only lengthen the
        # transfers of the swaps that are added after it, so these ranges only shrink.
        first, last = (np.array([gap.until - gap.since for gap in self.gaps]), np.zeros(len(left)))

        def swap_out(at: int, stretch: int | None) -> None:
            swap = book.possible(self.gaps[at])
            left[at] = swap is not None
            if swap is None:
                return
            first[at] = swap.gap.until - swap.out[0].position - 1
            last[at] = swap.gap.until - swap.back[-1].position + 1
            if stretch is None or last[at] <= self.until[at, stretch] <= first[at]:
                before = book.usage.copy()
                book.add(swap)
                usage[gap_pool[at]] += book.usage - before
                left[at] = False
                taken.append(at)

        for at in initial.tolist():
            swap_out(at, None)
        for stretch in range(book.profile.stretch_count):
            for one in np.flatnonzero(usage[:, stretch] > rooms[:, stretch]).tolist():
                victims = self.victims[stretch]
                until = self.until[victims, stretch]
                helps = (last[victims] <= until) & (until <= first[victims])
                mine = pool[self.gap_item[victims]] == one
                for at in victims[left[victims] & helps & mine].tolist():
                    if usage[one, stretch] <= rooms[one, stretch]:
                        break
                    swap_out(at, stretch)
        return book, np.array(taken, np.int64)

    def _rooms(self, pool: Integers, placement: Integers) -> Floats:
        """(POOLS, S): each pool's room in each stretch, in pages. pool, placement: (N,), genes of
        the tensors."""
        fast = np.where(placement == SLOW, 0, self.pages)
        of_pool = np.array([np.where(pool == one, fast, 0) for one in range(POOLS)])
        needed = (of_pool @ self.in_use).max(axis=1, keepdims=True).astype(np.float64)
        beyond = (of_pool @ self.lives).max(axis=1, keepdims=True) - needed
        room = np.maximum(self.book.limit - self.other_pages, 0).astype(np.float64)
        spare = room - needed.sum()
        rooms: Floats = needed * room / max(needed.sum(), 1.0)
        if beyond.any():
            rooms = np.where(spare <= 0, rooms, needed + spare * beyond / beyond.sum())
        return np.floor(rooms + 1e-6)


def search(step: Step, mutation: float) -> tuple[Integers, int]:
    """Search for the genes of the plan with the lowest cost.

    mutation: probability that a gene of a child changes.

    Returns (genes, number of evaluated plans). The genes are the pool of each size class, followed
    by the placement of each tensor of the step.
    """
    random = np.random.default_rng(SEED)
    classes = np.arange(SIZE_CLASSES)
    used = np.unique(step.size_class)
    # The first population: one plan with a single pool for all sizes, one with a pool for each half
    # of the sizes, one with a pool for each quarter of the sizes, and mutants of these plans.
    ranks = np.searchsorted(used, classes, side="left")
    population = [
        np.concatenate(
            [np.minimum(ranks * pools // max(len(used), 1), pools - 1), 0 * step.tensors]
        )
        for pools in (1, 2, POOLS)
    ]
    while len(population) < POPULATION:
        population.append(_mutated(step, population[len(population) % 3], mutation, random))
    most = WORK // max(len(step.gaps) * step.book.profile.stretch_count, 1)
    most = min(max(most, EVALUATIONS_MIN), EVALUATIONS)
    costs = [step.cost(genes) for genes in population]
    evaluated = len(costs)
    while min(costs) > 0 and evaluated < most:
        parents = parents_odds(costs)
        best = int(np.argmin(costs))
        children = [population[best]]
        child_costs = [costs[best]]
        while len(children) < POPULATION and evaluated < most:
            one, other = (population[at] for at in random.choice(len(costs), 2, p=parents))
            point = int(random.integers(1, len(one)))
            child = np.concatenate([one[:point], other[point:]])
            children.append(_mutated(step, child, mutation, random))
            child_costs.append(step.cost(children[-1]))
            evaluated += 1
        population, costs = children, child_costs
    return population[int(np.argmin(costs))], evaluated


def _mutated(step: Step, genes: Integers, mutation: float, random: np.random.Generator) -> Integers:
    """Change each gene with the probability `mutation`."""
    placements = SLOW + 1 if step.accesses_slow else PINNED + 1
    limits = np.where(np.arange(len(genes)) < SIZE_CLASSES, POOLS, placements)
    changes = random.random(len(genes)) < mutation
    found: Integers = np.where(changes, random.integers(0, limits), genes)
    return found


def parents_odds(costs: list[float]) -> Floats:
    """(P,): the probability that each plan is chosen as a parent. The probability is 0 for a plan
    of infinite cost, unless all plans have infinite cost."""
    values = np.array(costs)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.full(len(values), 1 / len(values))
    spread = max(float(np.ptp(finite)), 1.0)
    weights = np.exp((finite.min() - values) / (TEMPERATURE * spread))
    found: Floats = weights / weights.sum()
    return found
