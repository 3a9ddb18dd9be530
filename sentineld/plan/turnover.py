# SPDX-License-Identifier: Apache-2.0
"""Turnover of arena pages: which tensors use the same pages one after another, and which pages are
kept.

A dead page is either dropped or kept for the next tensor. A kept page takes up memory until the
next birth on it. Because the page is kept, this birth causes no page fault. A page fault can take
as long as reading the page from slow memory.

Time is counted in moments. A stretch has one moment before each of its events (births
and deaths) and one after the last of them, so a step has M = events + S moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import SLOT_PLANNED, Layout
from sentineld.model.profile import Kind, Profile
from sentineld.model.ranges import ranges
from sentineld.plan.drops import covered, drops
from sentineld.plan.items import tensor_pages


def first_moments(profile: Profile) -> Integers:
    """(S + 1,): the first moment of each stretch, followed by the number of moments M."""
    events = np.append(profile.stretches["event"].astype(np.int64), profile.event_count)
    return events + np.arange(len(events))


def pages_there(moments: int, begin: Integers, past: Integers, pages: Integers) -> Integers:
    """(M,): the number of resident pages at each moment of a steady step.

    begin, past, pages: (N,): `pages` pages are resident in the moments [begin, past), which may
    extend into the next step.
    """
    change = np.zeros(2 * moments + 1, np.int64)
    np.add.at(change, begin, pages)
    np.add.at(change, past, -pages)
    unrolled = np.cumsum(change)[:-1]
    resident: Integers = unrolled[:moments] + unrolled[moments:]
    return resident


@dataclass(frozen=True)
class Turnover:
    """P tenancies. A tenancy is the use of a page range by one tensor for the tensor's lifetime.

    The page ranges are cut such that no tensor, region or drop begins or ends within a range.
    """

    tensor: Integers  # (P,): row of the profile's tensors
    first: Integers  # (P,): first page, counted from the arena's base
    pages: Integers  # (P,)
    death: Integers  # (P,): first moment after the tensor's death, 0..M-1
    gap: Integers  # (P,): number of moments from `death` to the next birth on the range
    dropped: Mask  # (P,): whether the pages are dropped at the tensor's death
    fresh: Mask  # (P,): whether the previous tenancy dropped the pages, so that this one faults

    def kept_pages(self, moments: int) -> Integers:
        """(M,): the number of kept dead pages at each moment."""
        return self.used(np.flatnonzero(~self.dropped), moments)

    def births(self, profile: Profile) -> Integers:
        """(S,): number of pages that births fault in during each stretch. Births that reuse kept
        pages cause no faults."""
        stretch = profile.tensors["birth_stretch"][self.tensor[self.fresh]].astype(np.int64)
        pages = np.bincount(stretch, self.pages[self.fresh], minlength=profile.stretch_count)
        return pages.astype(np.int64)

    def used(self, which: Integers, moments: int) -> Integers:
        """(M,): the number of dead pages that are resident at each moment if only these tenancies
        keep their pages when their tensors die. which: indices of these tenancies."""
        death, pages = self.death[which], self.pages[which]
        return pages_there(moments, death, death + self.gap[which], pages)


def slot_flags(layout: Layout, profile: Profile) -> npt.NDArray[np.uint32]:
    """(T,): the flags of each tensor's slot; 0 for tensors that are not transient."""
    slot = profile.tensors["slot"]
    flags = np.zeros(len(slot), np.uint32)
    transient = (slot >= 0) & (profile.tensors["kind"] != Kind.PERSISTENT)
    flags[transient] = layout.slots["flags"][slot[transient]]
    return flags


def life_moments(tensors: npt.NDArray[np.void]) -> tuple[Integers, Integers]:
    """Two arrays: the moments (see the module's docstring) at which these rows of a profile's
    tensors are born and die.

    A tensor is alive in the moments [birth, death). If the step does not free the tensor, and its
    death_event is therefore event_count, the death has the value M.
    """
    birth = tensors["birth_event"].astype(np.int64) + tensors["birth_stretch"] + 1
    death = tensors["death_event"].astype(np.int64) + tensors["death_stretch"] + 1
    return birth, death


def living_pages(profile: Profile, rows: Integers) -> Integers:
    """(M,): the number of pages of these tensors that are alive at each moment. rows: rows of the
    profile's tensors."""
    tensors, moments = profile.tensors[rows], int(first_moments(profile)[-1])
    birth, death = life_moments(tensors)
    always = tensors["kind"] == Kind.PERSISTENT
    birth, death = np.where(always, 0, birth), np.where(always, moments, death)
    past = np.where(death > birth, death, death + moments)
    return pages_there(moments, birth, past, tensor_pages(profile)[rows])


def alive_pages(layout: Layout, profile: Profile) -> Integers:
    """(M,): the number of arena pages that hold a live tensor at each moment."""
    return living_pages(profile, np.flatnonzero(slot_flags(layout, profile) & SLOT_PLANNED))


def turnover(
    layout: Layout,
    profile: Profile,
    tiers: tuple[int | None, ...] = (0,),
    cuts: Integers | None = None,
) -> Turnover:
    """Find the tenancies of all regions whose pages are born on one of the given tiers.

    tiers: tiers of births; the element None selects the regions in which the kernel chooses the
        tier.
    cuts: further arena pages at which to cut the page ranges.
    """
    page, moments = profile.page_bytes, int(first_moments(profile)[-1])
    flags = slot_flags(layout, profile)
    rows = np.flatnonzero(flags & SLOT_PLANNED)
    offset = layout.slots["offset"][profile.tensors["slot"][rows]].astype(np.int64)
    start = offset // page
    end = start + tensor_pages(profile)[rows]
    borders = [(one.offset // page, (one.offset + one.bytes) // page) for one in layout.regions]
    dropped_ranges = drops(layout, page)
    drop_begin = dropped_ranges["offset"].astype(np.int64) // page
    drop_end = drop_begin + dropped_ranges["bytes"].astype(np.int64) // page
    edges = np.unique(
        np.concatenate(
            [
                *(start, end, drop_begin, drop_end, np.array(borders, np.int64).ravel()),
                cuts if cuts is not None else start[:0],
            ]
        )
    )
    wanted = np.zeros(len(edges), np.bool_)
    for region, ends in zip(layout.regions, borders, strict=True):
        begin, past = np.searchsorted(edges, ends)
        wanted[begin:past] = region.tier in tiers
    # The edges divide the arena into ranges. Make one entry for each tensor and each range that the
    # tensor covers. `cell` is the index of the range.
    low, high = np.searchsorted(edges, start), np.searchsorted(edges, end)
    of = np.repeat(np.arange(len(rows)), high - low)
    cell = ranges(low, high - low)
    of, cell = of[wanted[cell]], cell[wanted[cell]]
    birth, death = life_moments(profile.tensors[rows[of]])
    order = np.lexsort((birth, cell))
    of, cell, birth, death = of[order], cell[order], birth[order], death[order]
    # Find the next birth on each range and the previous tenancy, also across the step's end.
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    last = np.append(begins, len(cell))[1:] - 1
    following = np.roll(birth, -1)
    following[last] = birth[begins] + moments
    before = np.arange(len(cell)) - 1
    before[begins] = last
    unrolled_death = np.where(death > birth, death, death + moments)
    size = np.diff(edges, append=0)[cell]
    slot = profile.tensors["slot"][rows[of]].astype(np.int64)
    dropped = covered(dropped_ranges, slot, edges[cell], size, page)
    return Turnover(
        tensor=rows[of],
        first=edges[cell],
        pages=size,
        death=death % moments,
        gap=np.maximum(following - unrolled_death, 0),
        dropped=dropped,
        fresh=dropped[before],
    )
