# SPDX-License-Identifier: Apache-2.0
"""The access table of a step for emulated tiers: each access's cost per page on the slow tier.

At each boundary the shim looks up the tiers of the pages that the next stretch accesses. For each
access to a slow page, it adds the cost to the delay debt. The cost comes from the timing model
(sentineld/model/timing.py) and is spread evenly over the tensor's pages. On paged tiers
machine/paged.py sets the costs to 0, and the shim uses the table only to count accesses by tier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import SLOT_PLANNED, Layout
from sentineld.model.profile import Profile
from sentineld.model.protocol import ACCESS_DTYPE, AccessFlag
from sentineld.model.ranges import ranges
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import access_pages, tensor_pages
from sentineld.plan.layout import cut_at_regions
from sentineld.plan.slack import sizes_of
from sentineld.plan.turnover import turnover

HIDDEN_PS_MAX = 1e15
"""Largest `slow_ps` that a row with the flag HIDES (see _with_hidden()) may have. It equals
HIDDEN_PS_MAX in shim/native/layout.c."""

HEAP_BYTES_MAX = 1 << 44
"""An address that is at least this number of bytes above the heap's base is outside the heap."""


def access_table(profile: Profile, layout: Layout, tiers: Tiers) -> npt.NDArray[np.void]:
    """ACCESS_DTYPE rows: one per access row of the profile, or several if the tensor spans regions,
    or if only some of its pages are born anew.

    For a row with the flag AT_BIRTH, the shim uses the row's `node` and not the residency map,
    because the tensor's tier cannot be read from the map when the stretch begins. The following
    rows have the flag AT_BIRTH:

    - accesses in the stretch of the tensor's birth to pages that are then born anew, on the tier of
      their region, because the tensor before it on these pages drops them. When the stretch begins,
      that tensor can still be alive, on another tier;
    - all accesses to a tensor that the step allocates outside the arena: the tensor's address in
      the heap differs from step to step, so the tensor's tier is assumed to be Layout.heap_tier, on
      which the heap's pages are born;
    - all accesses to a persistent tensor outside the heap: such a tensor was allocated before the
      shim started and counts as fast.

    If a tensor's slot also takes smaller tensors, the tensor's rows name the slot. The shim looks
    up the size of the slot's latest tensor and counts only the pages of that tensor. In the stretch
    of the tensor's birth, these rows also have the flag AFTER: the shim counts their accesses only
    when the next stretch begins, because the tensor's size is unknown before its birth.

    The table also has the rows that _with_hidden() adds.
    """
    rows, tensors = profile.accesses, profile.tensors[profile.accesses["tensor"]]
    pages = tensor_pages(profile)[rows["tensor"]]
    table = np.zeros(len(rows), ACCESS_DTYPE)
    table["stretch"] = rows["stretch"]
    table["pages"] = pages
    table["touched"] = access_pages(profile)
    timing = timing_of(tiers)
    extra_ps = 1000.0 * timing.extra_ns(profile)
    table["slow_ps"] = np.rint(extra_ps / np.maximum(pages, 1))

    slotted = tensors["slot"] >= 0
    slots = layout.slots[np.where(slotted, tensors["slot"], 0)] if len(layout.slots) else None
    flags = np.where(slotted, slots["flags"], 0) if slots is not None else np.zeros(len(rows), int)
    planned = slotted & ((flags & SLOT_PLANNED) != 0)
    if slots is not None:
        table["offset"][planned] = slots["offset"][planned]
    born = tensors["birth_stretch"] == rows["stretch"]
    index, offset, size, anew = _cut_at_births(
        profile,
        layout,
        planned & born,
        table["offset"].astype(np.int64),
        np.where(planned, pages * profile.page_bytes, 1),
    )
    part, offset, size = cut_at_regions(layout, offset, size)
    index, anew = index[part], anew[part]
    # The first page of each part, and the number of pages of its tensor.
    first = (offset - table["offset"].astype(np.int64)[index]) // profile.page_bytes
    whole = np.maximum(pages[index], 1)
    table, rows, tensors = table[index], rows[index], tensors[index]
    slotted, planned, born = slotted[index], planned[index], born[index]
    table["offset"][planned] = offset[planned]
    table["pages"][planned] = size[planned] // profile.page_bytes
    # Divide `touched` among the parts so that their sum is the row's.
    first[~planned] = 0
    touched, past = table["touched"].astype(np.int64), first + table["pages"]
    table["touched"] = touched * past // whole - touched * first // whole
    for region in layout.regions:
        inside = planned & (table["offset"] >= region.offset)
        inside &= table["offset"] < region.offset + region.bytes
        table["node"][inside] = _node(tiers, region.tier)
    table["node"][slotted & ~planned] = _node(tiers, layout.heap_tier)

    heap_offset = tensors["address"].astype(np.int64) - profile.heap_base
    in_heap = ~slotted & (heap_offset >= 0) & (heap_offset < HEAP_BYTES_MAX)
    in_heap &= heap_offset % profile.page_bytes == 0
    table["offset"][in_heap] = heap_offset[in_heap]
    sized = slotted & np.isin(tensors["slot"], np.flatnonzero(sizes_of(layout).vary))
    table["slot"] = np.where(sized, tensors["slot"] + 1, 0)
    at_birth = anew | ~(planned | in_heap)
    table["flags"] = np.where(in_heap, int(AccessFlag.HEAP), 0)
    table["flags"] |= np.where(at_birth, int(AccessFlag.AT_BIRTH), 0).astype(np.uint16)
    table["flags"] |= np.where(sized & born, int(AccessFlag.AFTER), 0).astype(np.uint16)
    return _with_hidden(table, timing.costs(profile).hidden_ns)


def _cut_at_births(
    profile: Profile, layout: Layout, births: Mask, offset: Integers, size: Integers
) -> tuple[Integers, Integers, Integers, Mask]:
    """Split the ranges of accesses in the stretch of the tensor's birth, so that all pages of a
    part are born anew or none is.

    births: (A,), the access rows to split. offset, size: (A,), the tensors' ranges, in bytes.
    Returns (index, offset, size, anew), each (N,): index is the access row of each part; anew is
    False for rows that are not split.
    """
    found = turnover(layout, profile, (0, 1, None))
    order = np.lexsort((found.first, found.tensor))
    tensor, fresh = found.tensor[order], found.fresh[order]
    # Join the page ranges of each tensor that are alike. They have no gaps.
    begins = np.flatnonzero(np.diff(tensor, prepend=-1) | np.diff(fresh.astype(int), prepend=0))
    pages = np.add.reduceat(found.pages[order], begins) if len(begins) else begins
    first, fresh = found.first[order][begins], fresh[begins]
    parts = np.bincount(tensor[begins], minlength=len(profile.tensors))
    of = profile.accesses["tensor"]
    births = births & (parts[of] > 0)
    many = np.where(births, parts[of], 1)
    index = np.repeat(np.arange(len(of)), many)
    cut = births[index]
    part = ranges((np.cumsum(parts) - parts)[of], many)[cut]
    offset, size, anew = offset[index], size[index], np.zeros(len(index), np.bool_)
    offset[cut], size[cut] = first[part] * profile.page_bytes, pages[part] * profile.page_bytes
    anew[cut] = fresh[part]
    return index, offset, size, anew


def _with_hidden(table: npt.NDArray[np.void], hidden_ns: Floats) -> npt.NDArray[np.void]:
    """The table, plus one row for each stretch in which other work can hide the time of slow
    accesses.

    hidden_ns: (S,), see AccessCosts.
    """
    stretch = np.flatnonzero(hidden_ns > 0)
    if not len(stretch):
        return table
    rows = np.zeros(len(stretch), ACCESS_DTYPE)
    rows["stretch"], rows["flags"] = stretch, int(AccessFlag.HIDES)
    # The shim refuses larger values. No real stretch hides so much time.
    rows["slow_ps"] = np.rint(np.minimum(1000.0 * hidden_ns[stretch], HIDDEN_PS_MAX))
    both = np.concatenate([rows, table])
    return both[np.argsort(both["stretch"], kind="stable")]


def _node(tiers: Tiers, tier: int | None) -> int:
    return tiers.tiers[tier or 0].nodes[0]
