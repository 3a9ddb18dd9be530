# SPDX-License-Identifier: Apache-2.0
"""Births, drops and last uses of a step of four stretches. The columns `born` and `dies`
give the numbers of stretches.

tensor  slot  bytes  born  dies    arena page
0        0     8192    0     2     0, fast region, dropped
1        1     4096    1     1     2, fast region, pool (kept)
2        2     5000    2     0 w   8, slow region, dropped; w: lives into the next step
3        3     9000    1     3     none: the heap serves it
4        -    40960    -     -     heap page 16
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import (
    MOVE_DTYPE,
    PART_DTYPE,
    SLOT_DROP,
    SLOT_DROP_PARTS,
    SLOT_DTYPE,
    SLOT_PLANNED,
    Layout,
    Plan,
    Prediction,
    Region,
    Space,
)
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Placement
from sentineld.plan.expected import (
    UNKNOWN_TIER,
    ahead_of_time,
    expected_step,
    settled,
    useful_until,
)

PAGE = 4096
HEAP = 1 << 30


def tensor(slot: int, size: int, birth: int, death: int, wraps: bool = False) -> tuple[object, ...]:
    kind = Kind.PERSISTENT if slot < 0 else Kind.ACTIVATION
    address = HEAP + 16 * PAGE if slot < 0 else HEAP
    return (slot, kind, size, address, birth, death, birth, death, wraps, Placement.AUTO)


def profile() -> Profile:
    tensors = [
        tensor(0, 8192, 0, 2),
        tensor(1, 4096, 1, 1),
        tensor(2, 5000, 2, 0, wraps=True),
        tensor(3, 9000, 1, 3),
        tensor(-1, 40960, 0, 4, wraps=True),
    ]
    accessed = [(0, 4), (1, 1), (2, 0), (2, 4), (3, 2)]
    accesses = [(stretch, tensor, 1, 0, 1, 1) for stretch, tensor in accessed]
    return Profile(
        tensors=np.array(tensors, TENSOR_DTYPE),
        accesses=np.array(accesses, ACCESS_DTYPE),
        stretches=np.zeros(4, STRETCH_DTYPE),
        layers=(),
        slot_count=4,
        event_count=8,
        page_bytes=PAGE,
        peak_bytes=1 << 20,
        source="shim",
        unattributed_pages=0,
        heap_base=HEAP,
    )


def layout(heap_tier: int | None = 1) -> Layout:
    slots = [
        (8192, 0, SLOT_PLANNED | SLOT_DROP, 0),
        (4096, 2 * PAGE, SLOT_PLANNED, 0),
        (5000, 8 * PAGE, SLOT_PLANNED | SLOT_DROP, 0),
        (9000, 0, 0, 0),
    ]
    regions = (Region(0, 4 * PAGE, 0, "fast"), Region(8 * PAGE, 4 * PAGE, 1, "slow"))
    return Layout(
        slots=np.array(slots, SLOT_DTYPE),
        cuts=np.zeros(0, np.uint32),
        regions=regions,
        waits=np.full(4, -1, np.int32),
        arena_bytes=16 * PAGE,
        heap_tier=heap_tier,
    )


def plan(moves: list[tuple[int, ...]]) -> Plan:
    return Plan(
        policy="test",
        budget_bytes=1 << 20,
        layout=layout(),
        moves=np.array(moves, MOVE_DTYPE),
        initial_tier=np.zeros(5, np.uint8),
        reasons=(),
        predicted=Prediction(0, 0, 0, 0, 0.0),
    )


def test_dropped_parts_of_a_slot_are_drops_and_the_rest_is_settled() -> None:
    # Slot 1 lies on page 2. Slot 2 lies on pages 8 and 9 and drops page 9.
    one = layout()
    slots = one.slots.copy()
    slots["flags"][2] = SLOT_PLANNED | SLOT_DROP_PARTS
    parted = replace(one, slots=slots, parts=np.array([(9 * PAGE, PAGE, 2, 0)], PART_DTYPE))
    step = expected_step(profile(), parted)
    assert step.drops.tolist() == [(0, 9 * PAGE, PAGE), (2, 0, 2 * PAGE)]
    stays = settled(replace(plan([]), layout=parted), PAGE)
    assert stays[["offset", "bytes", "tier"]].tolist() == [
        (2 * PAGE, PAGE, 0),
        (8 * PAGE, PAGE, 1),
    ]


def test_settled_pages_have_the_tier_of_their_region() -> None:
    # Slot 0 lies on pages 3 and 4, across the border of a fast and a slow region.
    one = layout()
    slots = one.slots.copy()
    slots[0] = (8192, 3 * PAGE, SLOT_PLANNED, 0)
    regions = (Region(0, 4 * PAGE, 0, "fast"), Region(4 * PAGE, 8 * PAGE, 1, "slow"))
    across = replace(one, slots=slots, regions=regions)
    stays = settled(replace(plan([]), layout=across), PAGE)
    assert stays[["offset", "bytes", "tier"]].tolist() == [
        (2 * PAGE, 2 * PAGE, 0),
        (4 * PAGE, PAGE, 1),
    ]


def test_births_and_drops_of_planned_slots_in_whole_pages() -> None:
    step = expected_step(profile(), layout())
    assert step.births.tolist() == [
        (0, 0, True, 0, 2 * PAGE),
        (1, 0, False, 2 * PAGE, PAGE),
        (2, 1, True, 8 * PAGE, 2 * PAGE),
    ]
    assert step.drops.tolist() == [(0, 8 * PAGE, 2 * PAGE), (2, 0, 2 * PAGE)]
    # In stretches 0 and 2, a tensor dies before another one is born: the drop comes first.
    assert step.events.tolist() == [
        (0, False, 0, 8 * PAGE, 2 * PAGE),
        (0, True, 0, 0, 2 * PAGE),
        (1, True, 0, 2 * PAGE, PAGE),
        (2, False, 0, 0, 2 * PAGE),
        (2, True, 1, 8 * PAGE, 2 * PAGE),
    ]
    assert step.boundary_count == 4


def test_births_outside_all_regions_have_an_unknown_tier() -> None:
    bare = layout()
    step = expected_step(profile(), Layout(**{**vars(bare), "regions": bare.regions[1:]}))
    assert step.births["tier"].tolist() == [UNKNOWN_TIER, UNKNOWN_TIER, 1]


@pytest.mark.parametrize(
    ("heap_tier", "pages"), [(1, [0, 0, 0, 0]), (0, [0, 3, 3, 3]), (None, [0, 3, 3, 3])]
)
def test_unplanned_tensors_are_charged_unless_the_heap_is_slow(
    heap_tier: int | None, pages: list[int]
) -> None:
    step = expected_step(profile(), layout(heap_tier))
    assert step.heap_bytes.tolist() == [count * PAGE for count in pages]


def test_adjacent_births_are_merged() -> None:
    whole = profile()
    whole.tensors["birth_stretch"][1] = 0
    whole.tensors["death_stretch"][1] = 2
    assert expected_step(whole, layout()).births.tolist()[0] == (0, 0, True, 0, 3 * PAGE)


def test_a_promotion_is_useful_until_its_last_use_before_the_next_demotion() -> None:
    heap = (4, Space.HEAP)
    rows = [
        (1, 2, *heap, 1, 16 * PAGE, 10 * PAGE),
        (1, 2, *heap, 0, 16 * PAGE, 10 * PAGE),
        (3, 0, *heap, 0, 16 * PAGE, 10 * PAGE),
    ]
    # Tensor 4 is used in stretches 0 and 2. The demotion at boundary 1 is useful for a whole
    # step, 4 boundaries. Each promotion is useful until the last use before the next demotion at
    # boundary 1. This use is in stretch 0, which begins 3 boundaries after boundary 1, and 1
    # boundary after boundary 3.
    assert useful_until(profile(), plan(rows)).tolist() == [4, 3, 1]


def test_a_demotion_may_begin_after_the_last_use() -> None:
    heap = (4, Space.HEAP)
    # Tensor 4 is used in stretches 0 and 2. A demotion at boundary 1 or 3 directly follows a use,
    # and a demotion at boundary 0 or 2 coincides with a use. So each of the four demotions begins
    # at its boundary, not earlier.
    for boundary, ahead in ((1, 0), (0, 0), (2, 0), (3, 0)):
        rows = [(boundary, boundary, *heap, 1, 16 * PAGE, 10 * PAGE)]
        assert ahead_of_time(profile(), plan(rows)).tolist() == [ahead]
    once = profile()
    once.accesses["stretch"][3] = 0
    for boundary, ahead in ((1, 0), (2, 1), (3, 2), (0, 0)):
        rows = [(boundary, boundary, *heap, 1, 16 * PAGE, 10 * PAGE)]
        assert ahead_of_time(once, plan(rows)).tolist() == [ahead]


def test_a_demotion_may_not_begin_before_birth_or_promotion() -> None:
    # Tensor 2 is born in stretch 2 and dies in stretch 0 of the next step. In this test, it is
    # never used.
    arena = (2, Space.ARENA, 1, 8 * PAGE, 2 * PAGE)
    unused = profile()
    unused.accesses["tensor"][4] = 3
    assert ahead_of_time(unused, plan([(3, 0, *arena)])).tolist() == [0]
    assert ahead_of_time(unused, plan([(0, 1, *arena)])).tolist() == [1]
    heap = (4, Space.HEAP)
    once = profile()
    once.accesses["stretch"][3] = 0
    rows = [
        (1, 0, *heap, 0, 20 * PAGE, PAGE),
        (3, 0, *heap, 1, 16 * PAGE, 4 * PAGE),
        (3, 0, *heap, 1, 20 * PAGE, 6 * PAGE),
    ]
    # Tensor 4 is now used in stretch 0 only, so pages 16 to 19 can be demoted from boundary 1 on.
    # Page 20, which is promoted at boundary 1, stays fast at least until boundary 2. Promotions
    # never begin early.
    assert ahead_of_time(once, plan(rows)).tolist() == [0, 2, 1]


def test_only_uses_of_tensors_in_the_range_count() -> None:
    rows = [(1, 2, 0, Space.ARENA, 0, 0, 2 * PAGE), (1, 2, 0, Space.ARENA, 0, 2 * PAGE, PAGE)]
    assert useful_until(profile(), plan(rows)).tolist() == [1, 0]
    # Tensor 3 lies in the heap. So its use does not count, although the offset of its slot is 0,
    # like that of slot 0.
    more = profile()
    heap_use = np.array([(3, 3, 1, 0, 1, 1)], ACCESS_DTYPE)
    more = replace(more, accesses=np.concatenate([more.accesses, heap_use]))
    assert useful_until(more, plan(rows)).tolist() == [1, 0]


def test_settled_pages_are_never_moved_or_dropped() -> None:
    initial = np.array(
        [(0, 0, 4, Space.HEAP, 0, 16 * PAGE, PAGE), (0, 0, 4, Space.HEAP, 0, 17 * PAGE, 9 * PAGE)],
        MOVE_DTYPE,
    )
    moved = plan([(1, 2, 4, Space.HEAP, 1, 20 * PAGE, PAGE)])
    # The pool keeps page 2; pages 0, 1, 8 and 9 are dropped and born again.
    found = settled(replace(moved, initial=initial), PAGE)
    assert found[["space", "tier", "offset", "bytes"]].tolist() == [
        (Space.ARENA, 0, 2 * PAGE, PAGE),
        (Space.HEAP, 0, 16 * PAGE, 4 * PAGE),
        (Space.HEAP, 0, 21 * PAGE, 5 * PAGE),
    ]
    pool_moved = plan([(1, 2, 1, Space.ARENA, 1, 2 * PAGE, PAGE)])
    assert len(settled(pool_moved, PAGE)) == 0


def test_a_promotion_is_useless_once_a_tensor_on_its_pages_has_died() -> None:
    # In this test, tensor 3 has a place in the arena, too. Tensor 0 lives on pages 0 and 1 until
    # stretch 2; tensor 3 is born on the same pages in stretch 3.
    one = profile()
    one.tensors["birth_stretch"][3] = 3
    more = np.array([(3, 3, 1, 0, 1, 1)], ACCESS_DTYPE)
    one = replace(one, accesses=np.concatenate([one.accesses, more]))
    arena = (0, Space.ARENA, 0, 0)
    made = plan([(1, 2, *arena, 2 * PAGE), (3, 0, *arena, 2 * PAGE)])
    made.layout.slots[3] = (8192, 0, SLOT_PLANNED, 0)
    # At boundary 3, that of the second move, no tensor lives on the pages: tensor 0 is dead, and
    # tensor 3 is not born yet.
    assert useful_until(one, made).tolist() == [1, 0]
