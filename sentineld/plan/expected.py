# SPDX-License-Identifier: Apache-2.0
"""The expected births and drops of a planned step, and the times at which each move is useful.

The functions of this module are pure functions of profile and plan. The mover needs the expected
births and drops because the shim does not report individual births and drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers, Table
from sentineld.model.plan import MOVE_DTYPE, SLOT_DROP, SLOT_PLANNED, Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.drops import drops_by_tensor
from sentineld.plan.items import lifetimes
from sentineld.plan.layout import cut_at_regions

UNKNOWN_TIER = 255
"""Tier number for births that the kernel places at first touch. They are charged as fast."""

BIRTH_DTYPE = np.dtype(
    [
        ("stretch", "<u4"),
        ("tier", "u1"),  # UNKNOWN_TIER: first touch
        ("survives", "?"),  # the tensor outlives the stretch of its birth
        ("offset", "<u8"),  # offset in the arena
        ("bytes", "<u8"),  # whole pages
    ]
)

DROP_DTYPE = np.dtype([("stretch", "<u4"), ("offset", "<u8"), ("bytes", "<u8")])

EVENT_DTYPE = np.dtype(
    [
        ("stretch", "<u4"),
        ("birth", "?"),  # True: a birth; False: a drop
        ("tier", "u1"),  # birth: as in BIRTH_DTYPE; drop: 0
        ("offset", "<u8"),
        ("bytes", "<u8"),
    ]
)


@dataclass(frozen=True)
class ExpectedStep:
    """The births and drops of a steady step under a layout."""

    births: Table
    """BIRTH_DTYPE, sorted by stretch; adjacent ranges are merged."""
    drops: Table
    """DROP_DTYPE, sorted by stretch; adjacent ranges are merged."""
    events: Table
    """EVENT_DTYPE, the individual births and drops in the order in which they happen."""
    heap_bytes: npt.NDArray[np.int64]
    """(S,): for each stretch, the page-rounded bytes of the tensors that the step allocates in the
    heap and that are alive during all or a part of the stretch. All 0 if the plan puts the heap on
    a slower tier."""

    @property
    def boundary_count(self) -> int:
        """The number of boundaries of a step, which is also its number of stretches."""
        return len(self.heap_bytes)


def expected_step(profile: Profile, layout: Layout) -> ExpectedStep:
    """The births and drops of a steady step under the layout."""
    tensors = profile.tensors[profile.tensors["slot"] >= 0]
    slots = layout.slots[tensors["slot"]]
    planned = (slots["flags"] & SLOT_PLANNED) != 0
    inside, places = tensors[planned], slots[planned]
    births = np.zeros(len(inside), BIRTH_DTYPE)
    births["stretch"] = inside["birth_stretch"]
    births["survives"] = inside["wraps"] | (inside["death_stretch"] != inside["birth_stretch"])
    births["offset"] = places["offset"]
    births["bytes"] = _page_rounded(places["bytes"], profile.page_bytes)
    given, row = drops_by_tensor(layout, inside["slot"].astype(np.int64), profile.page_bytes)
    dropper = inside[row]
    drops = np.zeros(len(given), DROP_DTYPE)
    drops["stretch"] = dropper["death_stretch"]
    drops["offset"] = given["offset"]
    drops["bytes"] = given["bytes"]
    index, offset, size = cut_at_regions(
        layout, births["offset"].astype(np.int64), births["bytes"].astype(np.int64)
    )
    births = births[index]
    births["offset"], births["bytes"] = offset, size
    births["tier"] = _region_tiers(layout, births["offset"])
    events = _in_order(births, inside["birth_event"][index], drops, dropper["death_event"])
    return ExpectedStep(
        births=_merged(births, ("stretch", "tier", "survives")),
        drops=_merged(drops, ("stretch",)),
        events=events,
        heap_bytes=_heap_bytes(profile, layout, tensors[~planned]),
    )


def _in_order(
    births: Table, born: npt.NDArray[np.uint32], drops: Table, dropped: npt.NDArray[np.uint32]
) -> Table:
    """Merge births and drops into EVENT_DTYPE rows, in order.

    born, dropped: event number of each birth and of each drop.
    """
    events = np.zeros(len(births) + len(drops), EVENT_DTYPE)
    for name in ("stretch", "offset", "bytes"):
        events[name] = np.concatenate([births[name], drops[name]])
    events["birth"][: len(births)] = True
    events["tier"][: len(births)] = births["tier"]
    position = np.concatenate([born, dropped])
    return events[np.lexsort((events["birth"], position, events["stretch"]))]


def useful_until(profile: Profile, plan: Plan) -> npt.NDArray[np.int64]:
    """(M,): the number of boundaries from each move's own boundary until the move is useless.

    A promotion serves the accesses between its boundary and the next demotion of the same pages. It
    is useless once the last stretch with such an access has begun. It is also useless once a tensor
    that is alive on these pages at the promotion's boundary dies, because the plan may keep the
    next tensor on these pages in slow memory. A demotion frees fast memory and is useful for a
    whole step.
    """
    count, moves = profile.stretch_count, plan.moves
    result = np.full(len(moves), count, dtype=np.int64)
    places = places_of(profile, plan.layout)
    accessed = profile.accesses["tensor"]
    birth, length = lifetimes(profile)
    for row in np.flatnonzero(moves["tier"] == 0):
        move = moves[row]
        boundary = int(move["boundary"])
        away = moves["boundary"][overlapping(moves, move) & (moves["tier"] != 0)]
        window = int(((away.astype(np.int64) - boundary) % count).min(initial=count)) or count
        here = overlapping(places, move)
        lived = (boundary - birth) % count  # number of stretches since the birth
        alive = here & (((lived > 0) & (lived < length)) | (length == count))
        left = np.where(length < count, length - lived, count)
        window = min(window, int(left[alive].min(initial=count)))
        inside = alive[accessed]
        uses = (profile.accesses["stretch"][inside].astype(np.int64) - boundary) % count
        result[row] = uses[uses < window].max(initial=0)
    return result


def ahead_of_time(profile: Profile, plan: Plan) -> npt.NDArray[np.int64]:
    """(M,): how many boundaries before its own boundary each move may begin.

    A demotion may begin as soon as the last use, birth or other move of its pages has passed. The
    plan schedules the demotion later only because bandwidth is limited. The result is 0 for
    promotions, because early promotions would take room that the plan needs. The result is also 0
    for a demotion if the stretch that begins at the demotion's own boundary uses the pages.
    """
    count, moves = profile.stretch_count, plan.moves
    result = np.zeros(len(moves), dtype=np.int64)
    for row, uses, births, others in _demoted(profile, plan):
        boundary = int(moves["boundary"][row])
        if not np.any(uses == boundary):
            warm = np.concatenate([uses, births, others[others != boundary]])
            result[row] = ((boundary - 1 - warm) % count).min(initial=count - 1)
    return result


def until_needed(profile: Profile, plan: Plan) -> npt.NDArray[np.int64]:
    """(M,): number of boundaries from each demotion until its pages are next used, born or moved.

    The number is at least 1 and at most the number of boundaries of a step. Promotions get this
    maximum.
    """
    count, moves = profile.stretch_count, plan.moves
    result = np.full(len(moves), count, dtype=np.int64)
    for row, uses, births, others in _demoted(profile, plan):
        after = (np.concatenate([uses, births, others]) - int(moves["boundary"][row])) % count
        result[row] = after[after > 0].min(initial=count)
    return result


def _demoted(profile: Profile, plan: Plan) -> Iterator[tuple[int, Integers, Integers, Integers]]:
    """Yield one tuple for each demotion.

    The tuple is (row of the demotion, stretches that use its pages, stretches in which its pages
    are born, boundaries of all moves of its pages).
    """
    moves, places = plan.moves, places_of(profile, plan.layout)
    accessed, used = profile.accesses["tensor"], profile.accesses["stretch"].astype(np.int64)
    born = profile.tensors["birth_stretch"].astype(np.int64)
    slotted = profile.tensors["slot"] >= 0
    for row in np.flatnonzero(moves["tier"] != 0).tolist():
        here = overlapping(places, moves[row])
        others = moves["boundary"][overlapping(moves, moves[row])].astype(np.int64)
        yield row, used[here[accessed]], born[here & slotted], others


def settled(plan: Plan, page_bytes: int) -> Table:
    """MOVE_DTYPE rows of resident pages that no planned move touches, each with the tier that the
    plan gives its pages.

    Some rows come from Plan.initial. The other rows are for arena pages that lie in regions with a
    tier (for example, in the pool) and are kept when their tensors die. Such a page is born on
    another tier if the region's tier is full. Later tensors would then reuse the page on the wrong
    tier, so the mover moves the page to the tier given here, in addition to the planned moves.
    """
    slots = plan.layout.slots
    flags = slots["flags"] & (SLOT_PLANNED | SLOT_DROP)
    keeper = np.flatnonzero(flags == SLOT_PLANNED)
    kept = slots[keeper]
    standing = np.zeros(len(kept), MOVE_DTYPE)
    standing["space"] = Space.ARENA
    standing["offset"] = kept["offset"]
    standing["bytes"] = _page_rounded(kept["bytes"], page_bytes)
    parts = plan.layout.parts
    partly = np.isin(keeper, parts["slot"])
    whole = [
        without(row, parts[parts["slot"] == slot])
        for row, slot in zip(standing[partly], keeper[partly], strict=True)
    ]
    standing = np.concatenate([standing[~partly], *whole])
    index, offset, size = cut_at_regions(
        plan.layout, standing["offset"].astype(np.int64), standing["bytes"].astype(np.int64)
    )
    standing = standing[index]
    standing["offset"], standing["bytes"] = offset, size
    standing["tier"] = _region_tiers(plan.layout, standing["offset"])
    standing = standing[standing["tier"] != UNKNOWN_TIER]
    rows = np.concatenate([plan.initial, standing])
    apart = [without(row, plan.moves[overlapping(plan.moves, row)]) for row in rows]
    return _merged(np.concatenate([rows[:0], *apart]), ("space", "tier"))


def without(row: np.void, ranges: Table) -> Table:
    """Cut the given ranges out of the range of `row`; return the remaining parts, ascending.

    row: a MOVE_DTYPE row. ranges: rows with `offset` and `bytes`, all in the space of `row`.
    Returns copies of `row` with the offset and bytes of each part.
    """
    low, high = int(row["offset"]), int(row["offset"]) + int(row["bytes"])
    left: list[tuple[int, int]] = []
    for one in np.sort(ranges, order="offset"):
        begin = int(one["offset"])
        if low < begin:
            left.append((low, begin))
        low = max(low, begin + int(one["bytes"]))
    if low < high:
        left.append((low, high))
    found = np.zeros(len(left), MOVE_DTYPE)
    found[:] = row
    found["offset"] = [begin for begin, _ in left]
    found["bytes"] = [end - begin for begin, end in left]
    return found


def overlapping(ranges: Table, one: np.void) -> npt.NDArray[np.bool_]:
    """Which ranges (rows with space, offset, bytes) overlap the given range."""
    found: npt.NDArray[np.bool_] = (
        (ranges["space"] == one["space"])
        & (ranges["offset"] < one["offset"] + one["bytes"])
        & (one["offset"] < ranges["offset"] + ranges["bytes"])
    )
    return found


def places_of(profile: Profile, layout: Layout) -> Table:
    """The place of each tensor: MOVE_DTYPE rows with only space, offset and bytes set.

    Offset and bytes are 0 for tensors that a step allocates in the heap: their addresses differ
    from step to step.
    """
    tensors = profile.tensors
    places = np.zeros(len(tensors), MOVE_DTYPE)
    persistent = tensors["slot"] < 0
    slots = layout.slots[tensors["slot"][~persistent]]
    fixed = persistent.copy()
    fixed[~persistent] = (slots["flags"] & SLOT_PLANNED) != 0
    sizes = _page_rounded(tensors["bytes"], profile.page_bytes)
    places["bytes"][fixed] = sizes[fixed]
    places["space"] = np.where(persistent, Space.HEAP, Space.ARENA)
    places["offset"] = tensors["address"] - np.uint64(profile.heap_base)
    places["offset"][~persistent] = slots["offset"]
    places["offset"][~fixed] = 0
    return places


def _page_rounded(sizes: npt.NDArray[np.uint64], page_bytes: int) -> npt.NDArray[np.uint64]:
    page = np.uint64(page_bytes)
    rounded: npt.NDArray[np.uint64] = (sizes + page - np.uint64(1)) // page * page
    return rounded


def _region_tiers(layout: Layout, offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    tiers = np.full(len(offsets), UNKNOWN_TIER, dtype=np.uint8)
    for region in layout.regions:
        inside = (offsets >= region.offset) & (offsets < region.offset + region.bytes)
        if region.tier is not None:
            tiers[inside] = region.tier
    return tiers


def _heap_bytes(profile: Profile, layout: Layout, unplanned: Table) -> npt.NDArray[np.int64]:
    """See ExpectedStep.heap_bytes."""
    count = profile.stretch_count
    total = np.zeros(count, dtype=np.int64)
    if layout.heap_tier not in (None, 0):
        return total
    sizes = _page_rounded(unplanned["bytes"], profile.page_bytes).astype(np.int64)
    for tensor, size in zip(unplanned, sizes, strict=True):
        birth, death = int(tensor["birth_stretch"]), int(tensor["death_stretch"])
        if tensor["wraps"]:
            total[birth:] += size
            total[: death + 1] += size
        else:
            total[birth : death + 1] += size
    return total


def _merged(table: Table, keys: tuple[str, ...]) -> Table:
    """Sort the table by keys and offset; merge adjacent ranges with equal keys."""
    if not len(table):
        return table
    table = np.sort(table, order=[*keys, "offset"])
    kept: list[int] = [0]
    offset, size = table["offset"], table["bytes"]
    ends = offset + size
    end = int(ends[0])
    for row in range(1, len(table)):
        same = all(table[key][row] == table[key][kept[-1]] for key in keys)
        if same and int(table["offset"][row]) <= end:
            end = max(end, int(ends[row]))
        else:
            kept.append(row)
            end = int(ends[row])
        table["bytes"][kept[-1]] = end - int(table["offset"][kept[-1]])
    return table[kept]
