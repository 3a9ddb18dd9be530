# SPDX-License-Identifier: Apache-2.0
"""The pages of a plan as cells: ranges of pages that are always treated alike.

A cell is a range of pages of one space: the arena, the heap, or UNPLACED (below). No tensor, move,
drop, region or range of Plan.initial begins or ends inside a cell. All pages of a cell are
accessed, born and dropped alike, so the simulator only counts a cell's fast, slow and clean pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask, Table
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Kind, Profile
from sentineld.plan.drops import drops_by_tensor
from sentineld.plan.items import tensor_pages
from sentineld.plan.residency import places

UNPLACED = 2
"""Space of tensors to which the plan gives no address. Each such tensor has its own page range."""


@dataclass(frozen=True)
class Cells:
    """The cells of a plan: C cells, sorted by space and first page; T tensors; D drops of cells."""

    space: Integers
    """(C,), the cell's Space, or UNPLACED."""
    first: Integers
    """(C,), first page within the space."""
    pages: Integers
    """(C,), number of pages."""
    born_fast: Integers
    """(C,), number of pages that are born on the fast tier if it has room."""
    persistent: Mask
    """(C,), whether the cell holds a persistent tensor."""
    dropped: Mask
    """(C,), whether the death of at least one of the cell's tensors drops the cell's pages."""
    low: Integers
    """(T,), first cell of each tensor."""
    high: Integers
    """(T,), index after each tensor's last cell."""
    dropper: Integers
    """(D,), tensor whose death causes each drop."""
    drop_low: Integers
    """(D,), first cell of each drop."""
    drop_high: Integers
    """(D,), index after each drop's last cell."""

    def inside(self, ranges: Table, page_bytes: int) -> list[tuple[int, int]]:
        """For each range (row with space, offset, bytes): first cell, index after last cell."""
        found = []
        for row in ranges:
            begin, end = np.searchsorted(self.space, [row["space"], row["space"] + 1])
            start = int(row["offset"]) // page_bytes
            past = start + int(row["bytes"]) // page_bytes
            low, high = np.searchsorted(self.first[begin:end], [start, past]) + begin
            found.append((int(low), int(high)))
        return found


def cells_of(plan: Plan, profile: Profile) -> Cells:
    """Cut the spaces of the plan into cells."""
    page = profile.page_bytes
    tensors, pages = profile.tensors, tensor_pages(profile)
    space, offset = places(plan, profile)
    start = offset // page
    unplaced = np.flatnonzero(space < 0)
    space[unplaced] = UNPLACED
    start[unplaced] = np.cumsum(pages[unplaced]) - pages[unplaced]
    spaces: list[Integers] = []
    firsts: list[Integers] = []
    sizes: list[Integers] = []
    low, high = np.zeros(len(tensors), np.int64), np.zeros(len(tensors), np.int64)
    before = 0
    for kind in (Space.ARENA, Space.HEAP, UNPLACED):
        rows = np.flatnonzero(space == kind)
        begin, end = start[rows], start[rows] + pages[rows]
        edges = np.unique(np.concatenate([begin, end, _edges(plan, kind, page)]))
        # Pages that no tensor covers are in no cell.
        cover = np.zeros(len(edges) + 1, np.int64)
        at_begin, at_end = np.searchsorted(edges, begin), np.searchsorted(edges, end)
        np.add.at(cover, at_begin, 1)
        np.add.at(cover, at_end, -1)
        used = np.flatnonzero(np.cumsum(cover)[: max(len(edges) - 1, 0)] > 0)
        number = np.full(len(edges) + 1, before, np.int64)
        number[1:] += np.cumsum(np.isin(np.arange(len(edges)), used))
        low[rows], high[rows] = number[at_begin], number[at_end]
        spaces.append(np.full(len(used), int(kind), np.int64))
        firsts.append(edges[used])
        sizes.append(edges[used + 1] - edges[used] if len(used) else edges[:0])
        before += len(used)
    all_space, first = np.concatenate(spaces), np.concatenate(firsts)
    size = np.concatenate(sizes)
    persistent, dropped = np.zeros(before, np.bool_), np.zeros(before, np.bool_)
    for row in np.flatnonzero(tensors["kind"] == Kind.PERSISTENT).tolist():
        persistent[low[row] : high[row]] = True
    given, giver = drops_by_tensor(plan.layout, tensors["slot"].astype(np.int64), page)
    arena = firsts[0]
    begins = given["offset"].astype(np.int64) // page
    ends = begins + given["bytes"].astype(np.int64) // page
    # Assume that the heap drops the pages of an unplaced transient tensor when the tensor dies.
    unplaced = np.flatnonzero((space == UNPLACED) & (tensors["kind"] != Kind.PERSISTENT))
    dropper = np.concatenate([giver, unplaced])
    drop_low = np.concatenate([np.searchsorted(arena, begins), low[unplaced]])
    drop_high = np.concatenate([np.searchsorted(arena, ends), high[unplaced]])
    for begin, end in zip(drop_low.tolist(), drop_high.tolist(), strict=True):
        dropped[begin:end] = True
    return Cells(
        space=all_space,
        first=first,
        pages=size,
        born_fast=_born_fast(plan, all_space, first, size, page),
        persistent=persistent,
        dropped=dropped,
        low=low,
        high=high,
        dropper=dropper,
        drop_low=drop_low,
        drop_high=drop_high,
    )


def _edges(plan: Plan, kind: int, page: int) -> Integers:
    rows = [table[table["space"] == kind] for table in (plan.moves, plan.initial)]
    ends = [row["offset"] for row in rows] + [row["offset"] + row["bytes"] for row in rows]
    edges: Integers = np.concatenate(ends).astype(np.int64) // page
    if kind == Space.ARENA:
        for region in plan.layout.regions:
            edges = np.append(
                edges, [region.offset // page, (region.offset + region.bytes) // page]
            )
        parts = (
            plan.layout.parts["offset"],
            plan.layout.parts["offset"] + plan.layout.parts["bytes"],
        )
        edges = np.append(edges, np.concatenate(parts).astype(np.int64) // page)
    return edges


def _born_fast(
    plan: Plan, space: Integers, first: Integers, pages: Integers, page: int
) -> Integers:
    """(C,): number of pages that are born on the fast tier if it has room.

    Pages whose tier the kernel chooses are included.
    """
    wanted = np.zeros(len(first), np.int64)
    for region in plan.layout.regions:
        low = region.offset // page
        inside = (space == Space.ARENA) & (first >= low)
        inside &= first < low + region.bytes // page
        wanted[inside] = pages[inside] * (region.tier in (None, 0))
    heap = space != Space.ARENA
    wanted[heap] = pages[heap] * (plan.layout.heap_tier in (None, 0))
    return wanted


def page_costs(profile: Profile, cells: Cells, extra_ns: Floats, rows: Mask) -> Floats:
    """(S, C): ns that each slow page of each of C cells costs in each of S stretches.

    extra_ns: (A,), cost of each of A access rows if its whole tensor is slow. Other amounts, such
    as numbers of accesses, can be given instead; they are divided among the tensor's pages, too.
    rows: (A,), which access rows to count.
    """
    accesses = profile.accesses[rows]
    tensor = accesses["tensor"]
    each = extra_ns[rows] / np.maximum(tensor_pages(profile)[tensor], 1)
    steps = np.zeros((profile.stretch_count, len(cells.pages) + 1))
    np.add.at(steps, (accesses["stretch"], cells.low[tensor]), each)
    np.add.at(steps, (accesses["stretch"], cells.high[tensor]), -each)
    costs: Floats = np.cumsum(steps, axis=1)[:, :-1]
    # Clear rounding errors in sums that should be 0.
    costs[np.abs(costs) < 1e-9 * max(float(np.abs(each).max(initial=0.0)), 1e-9)] = 0.0
    return costs


def written_cells(profile: Profile, cells: Cells) -> Mask:
    """(S, C): whether each stretch writes to the pages of each cell."""
    rows = profile.accesses["bytes_written"] > 0
    return page_costs(profile, cells, np.ones(len(rows)), rows) > 0
