# SPDX-License-Identifier: Apache-2.0
"""Shares of fast and accessed pages by address and stretch, under a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.items import access_pages, lifetimes, tensor_pages
from sentineld.plan.residency import ABSENT, UNKNOWN, Residency, places
from sentineld.report.boxes import Boxes
from sentineld.report.heatmap import HEAP_BYTES_MAX, Heatmap, axis_of, covered


@dataclass(frozen=True)
class TierMap:
    """Shares (0..1) of the pages of each row of the map, as arrays indexed by [row, stretch]."""

    heat: Heatmap
    """Live and accessed pages of the planned tensors. The arena follows the heap on the axis."""
    fast: Floats  # pages on the fast tier
    chosen: Floats  # pages on a tier that the kernel chooses
    up: Floats  # pages whose move to the fast tier starts when the stretch begins
    down: Floats  # pages whose move to the slow tier starts when the stretch begins
    boxes: Boxes


def tier_map(plan: Plan, profile: Profile, found: Residency, rows: int) -> TierMap:
    """The map of a plan.

    A profile does not record which pages of a tensor are accessed, only their number. Therefore the
    accesses to a tensor are spread evenly over its pages.

    found: the plan's residency.
    rows: maximum number of rows.
    """
    page, count = profile.page_bytes, profile.stretch_count
    arena = (profile.heap_base // page * page + HEAP_BYTES_MAX, max(plan.layout.arena_bytes, 1))
    space, offset = places(plan, profile)
    base = np.where(space == Space.ARENA, arena[0], profile.heap_base // page * page)
    tensor_first = (base + offset) // page
    first = tensor_first[found.tensor] + found.first_page
    past = first + found.pages
    axis = axis_of(first, past)
    rows = max(min(rows, axis.pages), 1)
    edges = np.arange(rows + 1) * axis.pages // rows
    sizes = np.maximum(np.diff(edges), 1)
    begin, end = axis.place(first), axis.place(past)
    rate = _access_rates(profile)
    live, fast, chosen, up, down, accessed = (np.zeros((rows, count)) for _ in range(6))
    for at in range(count):
        tier, moving = found.tier[at], found.moving[at]
        for share, which in (
            (live, tier != ABSENT),
            (fast, tier == 0),
            (chosen, tier == UNKNOWN),
            (up, moving & (tier != 0)),
            (down, moving & (tier == 0)),
        ):
            share[:, at] = covered(begin[which], end[which], edges) / sizes
        alive = tier != ABSENT
        weights = rate[at, found.tensor[alive]]
        accessed[:, at] = _weighted(begin[alive], end[alive], weights, edges) / sizes
    heat = Heatmap(
        axis=axis,
        edges=edges,
        live=live,
        accessed=np.minimum(accessed, 1.0),
        unknown=np.zeros((rows, count)),
        source="module" if "module" in profile.source else "shim",
        page_bytes=page,
        heap_base=profile.heap_base,
        arena=arena,
    )
    placed = np.flatnonzero(space >= 0)
    where = axis.place(tensor_first[placed])
    boxes = _boxes(profile, placed, where, where + tensor_pages(profile)[placed])
    return TierMap(heat, fast, chosen, up, down, boxes)


def _access_rates(profile: Profile) -> Floats:
    """(S, T): the share 0..1 of each tensor's pages that the stretch accesses."""
    rows, pages = profile.accesses, np.maximum(tensor_pages(profile), 1)
    rates = np.zeros((profile.stretch_count, len(profile.tensors)))
    np.add.at(rates, (rows["stretch"], rows["tensor"]), access_pages(profile))
    shares: Floats = np.minimum(rates / pages[None, :], 1.0)
    return shares


def _weighted(begin: Integers, end: Integers, weights: Floats, edges: Integers) -> Floats:
    """For each row, the sum of the weights of its positions. The weight of a position is the sum of
    the weights of all intervals [begin, end) that contain it."""
    places = np.concatenate([begin, end])
    if not len(places):
        return np.zeros(len(edges) - 1)
    order = np.argsort(places, kind="stable")
    places = places[order]
    slope = np.cumsum(np.concatenate([weights, -weights])[order])
    sums = np.append(0.0, np.cumsum(slope[:-1] * np.diff(places)))
    return np.diff(np.interp(edges, places, sums))


def _boxes(profile: Profile, tensor: Integers, begin: Integers, past: Integers) -> Boxes:
    """Boxes of tensors that lie at the positions [begin, past) of the axis."""
    birth, length = (values[tensor] for values in lifetimes(profile))
    count = profile.stretch_count
    ends = birth + length  # exclusive; beyond the step's end if the tensor wraps
    wraps = ends > count
    return Boxes(
        tensor=np.concatenate([tensor, tensor[wraps]]),
        begin=np.concatenate([begin, begin[wraps]]),
        past=np.concatenate([past, past[wraps]]),
        first=np.concatenate([birth, np.zeros(int(wraps.sum()), np.int64)]),
        last=np.concatenate([np.minimum(ends, count) - 1, ends[wraps] - count - 1]),
    )
