# SPDX-License-Identifier: Apache-2.0
"""Arena pages between two tensors: given back when the first one dies, or kept for the next.

A page that is kept costs its room until the next birth on it, and saves that
birth a page fault, which takes as long as reading the page from slow memory.
Time runs in moments: each stretch has one before each of its events, and one
after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import SLOT_PLANNED, Layout
from sentineld.model.profile import Kind, Profile
from sentineld.plan.drops import covered, drops
from sentineld.plan.items import tensor_pages


def first_moments(profile: Profile) -> Integers:
    """(S + 1,): of each stretch; the last one is the number of moments in a step."""
    events = np.append(profile.stretches["event"].astype(np.int64), profile.event_count)
    return events + np.arange(len(events))


def pages_there(moments: int, begin: Integers, past: Integers, pages: Integers) -> Integers:
    """(M,): how many pages are there at each moment of a step, of some that are from their begin
    until they are past, in the next step perhaps."""
    change = np.zeros(2 * moments + 1, np.int64)
    np.add.at(change, begin, pages)
    np.add.at(change, past, -pages)
    unrolled = np.cumsum(change)[:-1]
    there: Integers = unrolled[:moments] + unrolled[moments:]
    return there


@dataclass(frozen=True)
class Turnover:
    """P tenancies: of a page range by a tensor; no tensor, region or drop begins or ends within it.

    tensor, first (page of the arena), pages: (P,). death: (P,), the moment from which on the range
    is empty; gap: moments from then to the next birth on it. dropped: (P,), it gives its pages
    back; fresh: the one before did.
    """

    tensor: Integers
    first: Integers
    pages: Integers
    death: Integers
    gap: Integers
    dropped: Mask
    fresh: Mask

    def kept_pages(self, moments: int) -> Integers:
        """(M,): pages in which nobody lives and that were kept."""
        return self.used(np.flatnonzero(~self.dropped), moments)

    def births(self, profile: Profile) -> Integers:
        """(S,): pages that are born in each stretch where none were left."""
        stretch = profile.tensors["birth_stretch"][self.tensor[self.fresh]].astype(np.int64)
        pages = np.bincount(stretch, self.pages[self.fresh], minlength=profile.stretch_count)
        return pages.astype(np.int64)

    def used(self, which: Integers, moments: int) -> Integers:
        """(M,): pages that some of the tenancies take after their ends, if they are kept."""
        death, pages = self.death[which], self.pages[which]
        return pages_there(moments, death, death + self.gap[which], pages)


def slot_flags(layout: Layout, profile: Profile) -> npt.NDArray[np.uint32]:
    """(T,): of each tensor's slot; 0 without one, and for what outlives the step."""
    slot = profile.tensors["slot"]
    flags = np.zeros(len(slot), np.uint32)
    passing = (slot >= 0) & (profile.tensors["kind"] != Kind.PERSISTENT)
    flags[passing] = layout.slots["flags"][slot[passing]]
    return flags


def life_moments(tensors: npt.NDArray[np.void]) -> tuple[Integers, Integers]:
    """(birth, death) of each of these rows of a profile, which is there until the moment of its
    death; that of a life that is over at the step's end may be one beyond the last."""
    birth = tensors["birth_event"].astype(np.int64) + tensors["birth_stretch"] + 1
    death = tensors["death_event"].astype(np.int64) + tensors["death_stretch"] + 1
    return birth, death


def alive_pages(layout: Layout, profile: Profile) -> Integers:
    """(M,): pages of the arena in which planned tensors live, at each moment."""
    moments = int(first_moments(profile)[-1])
    rows = np.flatnonzero(slot_flags(layout, profile) & SLOT_PLANNED)
    tensors, pages = profile.tensors[rows], tensor_pages(profile)[rows]
    birth, death = life_moments(tensors)
    return pages_there(moments, birth, np.where(death > birth, death, death + moments), pages)


def turnover(
    layout: Layout,
    profile: Profile,
    tiers: tuple[int | None, ...] = (0,),
    cuts: Integers | None = None,
) -> Turnover:
    """Who follows whom on the pages of the layout's regions whose births go to one of the tiers.
    cuts: pages of the arena at which a tenancy begins, besides."""
    page, moments = profile.page_bytes, int(first_moments(profile)[-1])
    flags = slot_flags(layout, profile)
    rows = np.flatnonzero(flags & SLOT_PLANNED)
    offset = layout.slots["offset"][profile.tensors["slot"][rows]].astype(np.int64)
    start = offset // page
    end = start + tensor_pages(profile)[rows]
    around = [(one.offset // page, (one.offset + one.bytes) // page) for one in layout.regions]
    given = drops(layout, page)
    given_begin = given["offset"].astype(np.int64) // page
    given_end = given_begin + given["bytes"].astype(np.int64) // page
    edges = np.unique(
        np.concatenate(
            [
                *(start, end, given_begin, given_end, np.array(around, np.int64).ravel()),
                cuts if cuts is not None else start[:0],
            ]
        )
    )
    wanted = np.zeros(len(edges), np.bool_)
    for region, ends in zip(layout.regions, around, strict=True):
        begin, past = np.searchsorted(edges, ends)
        wanted[begin:past] = region.tier in tiers
    low, high = np.searchsorted(edges, start), np.searchsorted(edges, end)
    of = np.repeat(np.arange(len(rows)), high - low)
    cell = np.arange(len(of)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    cell += low[of]
    of, cell = of[wanted[cell]], cell[wanted[cell]]
    birth, death = life_moments(profile.tensors[rows[of]])
    order = np.lexsort((birth, cell))
    of, cell, birth, death = of[order], cell[order], birth[order], death[order]
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    last = np.append(begins, len(cell))[1:] - 1
    following = np.roll(birth, -1)
    following[last] = birth[begins] + moments
    before = np.arange(len(cell)) - 1
    before[begins] = last
    lasting = np.where(death > birth, death, death + moments)
    size = np.diff(edges, append=0)[cell]
    slot = profile.tensors["slot"][rows[of]].astype(np.int64)
    dropped = covered(given, slot, edges[cell], size, page)
    return Turnover(
        tensor=rows[of],
        first=edges[cell],
        pages=size,
        death=death % moments,
        gap=np.maximum(following - lasting, 0),
        dropped=dropped,
        fresh=dropped[before],
    )
