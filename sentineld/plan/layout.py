# SPDX-License-Identifier: Apache-2.0
"""Layouts: where in the arena each allocation of a step lies.

An area is a part of the arena whose pages are all born on one tier. Tensors
of an area that are accessed in the same stretches (the same layer bit string)
and live equally long lie side by side, most accessed first, and are packed as
one block; so what moves at the same time is one range. What never moves is laid out
tensor by tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import SLOT_DROP, SLOT_DTYPE, SLOT_PLANNED, Layout, Region
from sentineld.model.profile import Profile
from sentineld.plan.huge import UNITS, best_begin
from sentineld.plan.items import access_pages, tensor_pages
from sentineld.plan.packing import pack, pack_as_born


@dataclass(frozen=True)
class Area:
    """tensors: rows of the profile, each with a slot. drops: for each, whether its pages are given
    back when it dies. grouped: lay tensors of equal bit strings side by side. still: see
    area_offsets(). as_born: nothing of it is moved and there is room for it, so that each tensor
    may lie where one has just died; grouped and still then mean nothing."""

    name: str
    tier: int | None
    tensors: Integers
    drops: npt.NDArray[np.bool_]
    grouped: bool = True
    still: Mask | None = None
    as_born: bool = False


def build_layout(
    profile: Profile, areas: Sequence[Area], waits: Integers, heap_tier: int | None
) -> Layout:
    """Lay out the areas, one region each, one after the other. Tensors with a slot that are in
    no area stay in the heap."""
    slots = np.zeros(profile.slot_count, SLOT_DTYPE)
    slotted = profile.tensors["slot"] >= 0
    slots["bytes"][profile.tensors["slot"][slotted]] = profile.tensors["bytes"][slotted]
    regions: list[Region] = []
    end = 0
    for area in areas:
        if not len(area.tensors):
            continue
        if area.as_born:
            offsets, size = born_offsets(profile, area.tensors)
        else:
            offsets, size = area_offsets(profile, area.tensors, area.grouped, area.still)
        page = profile.page_bytes
        end = best_begin(end // page, size, page) * page
        slot = profile.tensors["slot"][area.tensors]
        slots["offset"][slot] = end + offsets * page
        slots["flags"][slot] = SLOT_PLANNED | np.where(area.drops, SLOT_DROP, 0)
        regions.append(Region(end, size * page, area.tier, area.name))
        end += size * page
    is_cut = profile.stretches["cut"]
    return Layout(
        slots=slots,
        cuts=profile.stretches["cursor"][is_cut].astype(np.uint32),
        regions=tuple(regions),
        waits=waits.astype(np.int32),
        arena_bytes=end,
        heap_tier=heap_tier,
    )


def born_offsets(profile: Profile, tensors: Integers) -> tuple[Integers, int]:
    """(offset of each tensor, size of the area), in pages; see Area.as_born."""
    first, last = _circular(profile, *_lives(profile, tensors))
    packed = pack_as_born(tensor_pages(profile)[tensors], first, last)
    return packed.offsets, packed.size


def area_offsets(
    profile: Profile,
    tensors: Integers,
    grouped: bool = True,
    still: Mask | None = None,
    apart: bool = False,
) -> tuple[Integers, int]:
    """(offset of each tensor, size of the area), in pages. still: which of them no move touches; of
    these the large ones lie where huge pages do, in no group. apart: others begin where smaller
    huge pages do, which takes more of the area.

    A huge page can be there only where all tensors take the whole of it. So those of whole huge
    pages have a part of the area to themselves, and so has each other size.
    """
    pages = tensor_pages(profile)[tensors]
    huge, least = (unit // profile.page_bytes for unit in UNITS)
    alone = np.zeros(len(tensors), np.bool_) if still is None else still & (pages >= huge)
    birth, death = _lives(profile, tensors)
    blocks = _blocks(profile, tensors, alone) if grouped else [[at] for at in range(len(tensors))]
    size = np.array([pages[block].sum() for block in blocks], dtype=np.int64)
    first, last = _circular(
        profile,
        np.array([birth[block].min() for block in blocks], dtype=np.int64),
        np.array([death[block].max() for block in blocks], dtype=np.int64),
    )
    aligned = np.array([alone[block[0]] for block in blocks], dtype=np.bool_)
    part = np.where(aligned, np.where(size % huge == 0, huge, size), 0)
    place = np.zeros(len(blocks), np.int64)
    end = 0
    for one in np.unique(part)[::-1].tolist():
        inside = np.flatnonzero(part == one)
        unit = huge if one else least if apart else 1
        units = np.where(size[inside] >= unit, unit, 1)
        packed = pack(size[inside], first[inside], last[inside], units)
        end = best_begin(end, packed.size, profile.page_bytes)
        place[inside] = end + packed.offsets
        end += packed.size
    offsets = np.zeros(len(tensors), np.int64)
    for block, offset in zip(blocks, place.tolist(), strict=True):
        offsets[block] = offset + np.cumsum(pages[block]) - pages[block]
    return offsets, end


def _lives(profile: Profile, tensors: Integers) -> tuple[Integers, Integers]:
    """(birth, death) in events, unrolled: a life that wraps ends in the next turn."""
    rows = profile.tensors[tensors]
    birth, death = rows["birth_event"].astype(np.int64), rows["death_event"].astype(np.int64)
    return birth, np.where(rows["wraps"], death + profile.event_count, death)


def _circular(profile: Profile, first: Integers, last: Integers) -> tuple[Integers, Integers]:
    """Unrolled lives as packing takes them."""
    events = max(profile.event_count, 1)
    always = last - first >= events
    return np.where(always, 0, first), np.where(always, 0, last % events)


def cut_at_regions(
    layout: Layout, offset: Integers, size: Integers
) -> tuple[Integers, Integers, Integers]:
    """(index, offset, bytes): ranges of the arena, those that lie across regions cut where one
    ends. In order."""
    edges = np.unique([region.offset for region in layout.regions]).astype(np.int64)
    after = np.searchsorted(edges, offset, side="right")
    inside = np.maximum(np.searchsorted(edges, offset + size, side="left") - after, 0)
    index = np.repeat(np.arange(len(offset)), inside + 1)
    ordinal = np.arange(len(index)) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
    begin, end = offset[index].copy(), (offset + size)[index]
    later = ordinal > 0
    begin[later] = edges[after[index[later]] + ordinal[later] - 1]
    cut = ordinal < inside[index]
    end[cut] = edges[after[index[cut]] + ordinal[cut]]
    return index, begin, end - begin


def bit_strings(profile: Profile) -> list[bytes]:
    """For each tensor the stretches that access it, one bit each."""
    bits = np.zeros((len(profile.tensors), profile.stretch_count), np.bool_)
    bits[profile.accesses["tensor"], profile.accesses["stretch"]] = True
    return [row.tobytes() for row in np.packbits(bits, axis=1)]


def _blocks(profile: Profile, tensors: Integers, alone: Mask) -> list[list[int]]:
    """Indices into tensors, grouped but for those that are to be alone; each group by falling
    accesses per page."""
    strings = bit_strings(profile)
    accessed = np.bincount(
        profile.accesses["tensor"], access_pages(profile), minlength=len(profile.tensors)
    )
    density = accessed / np.maximum(tensor_pages(profile), 1)
    groups: defaultdict[tuple[bytes, int, int, int], list[int]] = defaultdict(list)
    for at, tensor in enumerate(tensors.tolist()):
        row = profile.tensors[tensor]
        stretches = int(row["birth_stretch"]), int(row["death_stretch"])
        groups[(strings[tensor], *stretches, at if alone[at] else -1)].append(at)
    return [
        sorted(group, key=lambda at: (-density[tensors[at]], tensors[at]))
        for group in groups.values()
    ]
