# SPDX-License-Identifier: Apache-2.0
"""The common part of the policies that swap tensors, such as G10, Capuchin, vDNN and LMS.

A swapping policy has a parameter and a list of values for it, `sweep`. opened_books() yields books
without swaps (swaps.py), which differ in the treatment of short-lived tensors. For each of these
books and each value, the policy adds swaps to a copy of the book and converts the copy to a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Mask, Table
from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.plan.layout import Area, build_layout
from sentineld.plan.residency import peak_fast_pages, places, residency
from sentineld.plan.schedule import births_waits, coalesce, deaths
from sentineld.policies.rivals.fixed import slow_costs_ns
from sentineld.policies.rivals.swaps import SHORT_SHARES, Book, infeasible, leave_slow, open_book
from sentineld.policies.shares import page_moves_ns


@dataclass
class SwappingPolicy(ABC):
    """A policy that makes a plan for each value in `sweep` and each book of opened_books(), and
    keeps the plan with the shortest predicted step. For each plan, the policy chooses swaps and
    adds them to the book until all tensors fit or no remaining gap (the time between two uses of a
    tensor; see Gap in swaps.py) makes room."""

    name: str

    accesses_slow: bool
    """Whether tensors that do not fit may stay on the slow tier."""

    charges_budget: bool = True

    sweep: ClassVar[tuple[float, ...]]

    obstacle: ClassVar[str]
    """For the error message: why the swaps cannot make everything fit."""

    synchronous: ClassVar[bool] = False
    """Whether the process waits at the end of a layer until the swap-outs that began in this layer
    are complete. On paged tiers, the process never waits at boundaries."""

    @abstractmethod
    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """Add swaps to the book until everything fits or no swap in a remaining gap makes room.

        value: one of `sweep`. Returns a text that states this value, for the plan's notes.
        """

    def improve(self, book: Book) -> None:  # noqa: B027
        """Improve a book in which everything fits; the default does nothing."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy. Raises SentinelError if the budget is too small."""
        cost_ns = slow_costs_ns(profile, tiers)
        best: Plan | None = None
        best_ns = math.inf
        promote_ns, _ = page_moves_ns(tiers, profile.page_bytes)
        problem = infeasible(self.obstacle)
        books = opened_books(profile, tiers, budget_bytes, self.accesses_slow)
        for (opened, remarks), value in product(books, self.sweep):
            book = opened.copy()
            note = self.relieve(book, tiers, value)
            notes = [f"tensors are swapped out in {len(book.swaps)} gaps; {note}", *remarks]
            if book.over.any():
                if not self.accesses_slow:
                    continue
                try:
                    left = leave_slow(book, cost_ns)
                except SentinelError as error:
                    problem = error
                    continue
                notes.append(f"{left} tensors stay slow")
            self.improve(book)
            found = swapping_plan(
                self.name, book, tiers, budget_bytes, tuple(notes), self.synchronous
            )
            step_ns: float = found.predicted.step_ns
            if self.synchronous:
                # A prediction does not include waits.
                step_ns += awaited_pages(book) * promote_ns
            if best is None or step_ns < best_ns:
                best, best_ns = found, step_ns
        if best is None:
            raise problem
        return best


def opened_books(
    profile: Profile, tiers: Tiers, budget_bytes: int, accesses_slow: bool
) -> Iterator[tuple[Book, tuple[str, ...]]]:
    """Yield the books from which a policy makes plans, and notes on each of them.

    If the short-lived tensors exceed the budget, there is a book for each of SHORT_SHARES
    (swaps.py). If page births take time, there are also books in which short-lived tensors lie in a
    pool: their births then take no time, as in an allocator that keeps freed memory, but the pool
    takes more room.

    Raises SentinelError if the short-lived tensors exceed the budget and accesses_slow is not set.
    """
    for kept in (False, True) if timing_of(tiers).birth_ns_per_byte else (False,):
        for share in SHORT_SHARES:
            try:
                book = open_book(profile, tiers, budget_bytes, accesses_slow, share, kept)
            except SentinelError:
                if kept:
                    return
                raise
            reduced = bool(book.slow.any())
            notes = ["short-lived tensors lie in a pool"] * kept
            if reduced:
                notes.append(f"short-lived tensors take at most {share:.0%} of the budget")
            yield book, tuple(notes)
            if not reduced:
                break


def swapping_plan(
    name: str,
    book: Book,
    tiers: Tiers,
    budget_bytes: int,
    notes: tuple[str, ...],
    synchronous: bool = False,
) -> Plan:
    """Convert a book to a plan. synchronous: see SwappingPolicy."""
    profile = book.profile
    placed = transient(profile)
    placed[book.short] = False
    fast, slow = np.flatnonzero(placed & ~book.slow), np.flatnonzero(placed & book.slow)
    areas = [
        Area(
            "pool" if book.kept else "short-lived",
            0,
            book.short,
            np.full(len(book.short), not book.kept),
            grouped=False,
        ),
        Area("fast-born", 0, fast, np.ones(len(fast), np.bool_)),
        Area("slow-born", 1, slow, np.zeros(len(slow), np.bool_)),
    ]
    waits = np.full(profile.stretch_count, -1, np.int64)
    layout = build_layout(profile, areas, waits, heap_tier=1)
    plan = draft(name, profile, budget_bytes, layout, notes)
    space, offset = places(plan, profile)
    plan = replace(plan, moves=_moves(book, space, offset), initial=_initial(book, offset))
    found = residency(plan, profile)
    charged = peak_fast_pages(plan, profile, found)
    waited = transient(profile)
    if book.kept:
        waited[book.short] = False
    waits = births_waits(plan, profile, found, charged, waited, book.limit)
    if synchronous:
        waits = with_layer_waits(waits, plan.moves, profile)
    layout = replace(plan.layout, waits=waits.astype(np.int32))
    return finished(replace(plan, layout=layout), profile, tiers)


def awaited_pages(book: Book) -> float:
    """The time for which the process waits at the ends of layers in a step, as the number of pages
    that can be swapped in during this time."""
    waited = backlog = 0.0
    for lane, kind in zip(book.lanes.tolist(), book.profile.stretches["kind"], strict=True):
        if kind != Boundary.CUT:
            waited += backlog
            backlog = 0.0
        backlog = max(backlog - lane, 0.0)
    return waited + backlog


def with_layer_waits(waits: Integers, moves: Table, profile: Profile) -> Integers:
    """Add waits: at the beginning of each layer, the process waits for the demotions that began in
    the previous layer.

    waits: (S,), for each boundary, the last boundary whose demotions the process waits for, or -1.
    moves: MOVE_DTYPE.
    """
    count, found = profile.stretch_count, waits.copy()
    begins = np.flatnonzero(profile.stretches["kind"] != Boundary.CUT)
    demotions = moves[moves["tier"] != 0]
    for began in np.unique(demotions["boundary"]).tolist():
        following = int(begins[np.searchsorted(begins, began, side="right") % len(begins)])
        known = int(found[following])
        # A boundary has only one wait. A wait for the demotions that begin at some boundary
        # includes the demotions that begin at earlier boundaries, so keep the latest boundary.
        if following != began and (
            known < 0 or (following - began) % count < (following - known) % count
        ):
            found[following] = began
    return found


def _moves(book: Book, space: Integers, offset: Integers) -> Table:
    profile, rows = book.profile, []
    page, count = profile.page_bytes, profile.stretch_count
    for swap in book.swaps:
        tensor = swap.gap.tensor
        for tier, parts in ((1, swap.out), (0, swap.back)):
            for part in parts:
                boundary = book.stretch(swap.gap, part.position)
                due = part.position + 1 if tier else swap.gap.until
                rows.append(
                    (
                        boundary,
                        book.stretch(swap.gap, due) % count,
                        tensor,
                        space[tensor],
                        tier,
                        offset[tensor] + part.first * page,
                        part.pages * page,
                    )
                )
    return in_order(coalesce(np.array(rows, MOVE_DTYPE), deaths(profile)), count)


def in_order(moves: Table, count: int) -> Table:
    """Sort moves by boundary, then demotions before promotions, then by deadline and offset.

    count: number of stretches.
    """
    window = (moves["deadline"].astype(np.int64) - moves["boundary"] - 1) % max(count, 1)
    order = np.lexsort((moves["offset"], window, moves["tier"] == 0, moves["boundary"]))
    return moves[order]


def tier_ranges(tensor: int, slow: Mask, offset: int, page_bytes: int) -> Table:
    """One row for each run of a heap tensor's pages that are on one tier at boundary 0; MOVE_DTYPE.

    slow: whether each page is slow. offset: offset of the tensor, in bytes.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[-1], slow.astype(np.int64), [-1]])))
    ranges = np.zeros(max(len(edges) - 1, 0), MOVE_DTYPE)
    ranges["space"] = Space.HEAP
    ranges["tensor"] = tensor
    ranges["tier"] = slow[edges[:-1]]
    ranges["offset"] = offset + edges[:-1] * page_bytes
    ranges["bytes"] = np.diff(edges) * page_bytes
    return ranges


def _initial(book: Book, offset: Integers) -> Table:
    """Page ranges of persistent tensors and their tiers at boundary 0. A range is slow at boundary
    0 if its tensor is always slow. It is also slow if it begins to be swapped out in the step
    before this boundary, and begins to be swapped back in at or after this boundary."""
    profile, count = book.profile, book.profile.stretch_count
    pages, page = tensor_pages(profile), profile.page_bytes
    tables = []
    for tensor in np.flatnonzero(persistent(profile)).tolist():
        slow = np.full(int(pages[tensor]), bool(book.slow[tensor]))
        for swap in book.swaps:
            if swap.gap.tensor != tensor:
                continue
            out, back = (np.zeros(len(slow), np.int64) for _ in range(2))
            for when, parts in ((out, swap.out), (back, swap.back)):
                for part in parts:
                    when[part.first : part.first + part.pages] = part.position
            slow |= (out < count) & (back >= count)
        tables.append(tier_ranges(tensor, slow, int(offset[tensor]), page))
    return coalesce(np.concatenate([np.zeros(0, MOVE_DTYPE), *tables]))
