# SPDX-License-Identifier: Apache-2.0
"""Layouts: where in the arena each planned tensor of a step lies.

An area is a set of tensors that is laid out as one region of the arena. Its pages are all born on
one tier, or the kernel chooses the tier of each page. Tensors of an area form a block if they have
the same lifetime in stretches and are accessed in the same stretches. bit_strings() returns equal
strings for tensors that are accessed in the same stretches. The tensors of a block are laid out
side by side, the most accessed first, and the block is packed as a unit. Therefore, tensors of a
block that move at the same time can form one range. If Area.grouped is False, as in some areas
without moves, each tensor is packed by itself.
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
from sentineld.model.ranges import ranges
from sentineld.plan.huge import UNITS, best_begin
from sentineld.plan.items import access_counts, tensor_pages
from sentineld.plan.packing import pack, pack_as_born


@dataclass(frozen=True)
class Area:
    """A set of tensors that is laid out as one region."""

    name: str  # name of the region
    tier: int | None  # tier on which the region's pages are born; None: the kernel chooses
    tensors: Integers  # (N,): rows of the profile's tensors; each has a slot
    drops: npt.NDArray[np.bool_]  # (N,): whether the tensor's pages are dropped at its death
    grouped: bool = True  # whether tensors with equal bit strings and lifetimes lie side by side
    # (N,): which tensors are never moved; see area_offsets(). None: any tensor may be moved.
    still: Mask | None = None
    # Place the tensors in the order of births, as an allocator would; this takes more space than
    # pack(). Set this flag only for areas without moves. If the flag is set, `grouped` and `still`
    # are ignored.
    as_born: bool = False


def slow_born_areas(rows: Integers, moved: Mask) -> tuple[Area, Area]:
    """Two areas for tensors that are born slow: one for tensors that are never moved, and one for
    moved tensors.

    rows: (N,), rows of the profile's tensors. moved: (T,), whether the plan moves each tensor.

    A moved tensor's pages are dropped at its death; the pages of never-moved tensors are kept. The
    two kinds of tensors never share pages, not even at different times: a late promotion can move
    pages that already belong to the next tensor. If that tensor's pages were kept at its death,
    they would stay in fast memory, and peak_fast_pages() would not count them.
    """
    still, others = rows[~moved[rows]], rows[moved[rows]]
    return (
        Area("slow-born", 1, still, np.zeros(len(still), np.bool_)),
        Area("slow-born, moved", 1, others, np.ones(len(others), np.bool_)),
    )


def build_layout(
    profile: Profile, areas: Sequence[Area], waits: Integers, heap_tier: int | None
) -> Layout:
    """Lay out the areas one after another, each as one region.

    Tensors that have a slot but are in no area are allocated from the heap.

    waits: (S,), see Layout. heap_tier: see Layout.
    """
    slots = np.zeros(profile.slot_count, SLOT_DTYPE)
    slotted = profile.tensors["slot"] >= 0
    tensors = profile.tensors[slotted]
    slots["bytes"][tensors["slot"]] = tensors["bytes"]
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
    """(offset of each tensor, size of the area), both in pages, for Area.as_born."""
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
    """(offset of each tensor, size of the area), both in pages.

    grouped: pack blocks of tensors instead of single tensors; see the module's docstring.
    still: (N,), which tensors are never moved. Never-moved tensors that are at least as large as a
        huge page are aligned to huge pages, and each of them is a block of its own.
    apart: also align the other blocks to the smallest huge page (UNITS in huge.py), if they are at
        least as large as that page. This makes the area larger.

    Memory whose pages are dropped can be backed by a huge page only if each tensor that overlaps
    the huge page fills it. Aligned tensors are therefore packed apart from the other tensors. Those
    whose size is a multiple of the huge page's size share one part of the area. The remaining
    aligned tensors get one part per tensor size, because tensors of equal size that use a huge page
    at different times cover the same pages of it: if one of them fills it, all do.
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
    """Two arrays (N,): the event numbers of the births and of the deaths. If a lifetime wraps,
    event_count is added to its death."""
    rows = profile.tensors[tensors]
    birth, death = rows["birth_event"].astype(np.int64), rows["death_event"].astype(np.int64)
    return birth, np.where(rows["wraps"], death + profile.event_count, death)


def _circular(profile: Profile, first: Integers, last: Integers) -> tuple[Integers, Integers]:
    """Convert lifetimes whose death can lie in the next step to the circular form of packing.py."""
    events = max(profile.event_count, 1)
    always = last - first >= events
    return np.where(always, 0, first), np.where(always, 0, last % events)


def cut_at_regions(
    layout: Layout, offset: Integers, size: Integers
) -> tuple[Integers, Integers, Integers]:
    """Split ranges of the arena wherever a region begins.

    offset, size: (N,), in bytes. Returns (index, offset, size) of the parts, each (M,), in order;
    index is the range that each part comes from.
    """
    edges = np.unique([region.offset for region in layout.regions]).astype(np.int64)
    after = np.searchsorted(edges, offset, side="right")
    inside = np.maximum(np.searchsorted(edges, offset + size, side="left") - after, 0)
    index = np.repeat(np.arange(len(offset)), inside + 1)
    ordinal = ranges(np.zeros_like(inside), inside + 1)
    begin, end = offset[index].copy(), (offset + size)[index]
    later = ordinal > 0
    begin[later] = edges[after[index[later]] + ordinal[later] - 1]
    cut = ordinal < inside[index]
    end[cut] = edges[after[index[cut]] + ordinal[cut]]
    return index, begin, end - begin


def bit_strings(profile: Profile) -> list[bytes]:
    """The bit string of each tensor: one bit per stretch, set if the stretch uses the tensor."""
    bits = np.zeros((len(profile.tensors), profile.stretch_count), np.bool_)
    bits[profile.accesses["tensor"], profile.accesses["stretch"]] = True
    return [row.tobytes() for row in np.packbits(bits, axis=1)]


def _blocks(profile: Profile, tensors: Integers, alone: Mask) -> list[list[int]]:
    """Blocks of tensors as indices into `tensors`, each sorted by accesses per page, descending.

    alone: (N,), whether each tensor forms a block of its own.
    """
    strings = bit_strings(profile)
    accessed = np.bincount(
        profile.accesses["tensor"], access_counts(profile), minlength=len(profile.tensors)
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
