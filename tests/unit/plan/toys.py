# SPDX-License-Identifier: Apache-2.0
"""A small profile, and plans for it made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import (
    MOVE_DTYPE,
    SLOT_DROP,
    SLOT_DTYPE,
    SLOT_PLANNED,
    Layout,
    Plan,
    Prediction,
    Region,
    Space,
)
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Boundary
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.stall_trial import stall_boundaries

PAGE = 4096
HEAP = 0x10_0000_0000


def two_tiers(bytes_per_s: float = 8 * PAGE) -> Tiers:
    """Two tiers; by default 8 pages per second can be moved."""
    return Tiers((Tier((0,), 1 << 30, 8e9, 8e9), Tier((1,), 1 << 30, 4e9, 2e9)), bytes_per_s, "toy")


def toy_profile() -> Profile:
    """Four stretches of one second each. The number after a tensor's name is its size in pages; (n)
    is an access to n pages; wraps: the tensor lives across the step's end.

    stretch       0 step                    1 forward  2 backward     3 optimizer
    activation 2       [born (2)                       (2)      dies]          slot 0
    scratch 1                [born (1) dies]                                   slot 1
    gradient 2    dies] wraps                          [born (2)      (2)      slot 2
    state 4       ....................................................(4)      persistent, page 0
    parameter 2   ..........................(2)........(2)............(2)      persistent, page 4

    events        0    1     2         3               4        5
                  free act.  scr.      free            grad.    free
                  grad alloc alloc     scr.            alloc    act.
    """
    tensors = np.zeros(5, TENSOR_DTYPE)
    tensors["slot"] = [0, 1, 2, -1, -1]
    tensors["kind"] = [
        Kind.ACTIVATION,
        Kind.SCRATCH,
        Kind.GRADIENT,
        Kind.PERSISTENT,
        Kind.PERSISTENT,
    ]
    tensors["bytes"] = [2 * PAGE, PAGE - 100, 2 * PAGE, 4 * PAGE, 2 * PAGE]
    tensors["address"] = HEAP + PAGE * np.array([10, 12, 14, 0, 4])
    tensors["birth_event"] = [1, 2, 4, 0, 0]
    tensors["death_event"] = [5, 3, 0, 6, 6]
    tensors["birth_stretch"] = [0, 0, 2, 0, 0]
    tensors["death_stretch"] = [2, 0, 0, 3, 3]
    tensors["wraps"] = [False, False, True, False, False]
    accessed = [
        (0, 0, 2),
        (0, 1, 1),
        (1, 4, 2),
        (2, 0, 2),
        (2, 2, 2),
        (2, 4, 2),
        (3, 2, 2),
        (3, 3, 4),
        (3, 4, 2),
    ]
    accesses = np.zeros(len(accessed), ACCESS_DTYPE)
    for at, (stretch, tensor, pages) in enumerate(accessed):
        accesses[at] = (stretch, tensor, pages * PAGE, 0, pages, pages)
    stretches = np.zeros(4, STRETCH_DTYPE)
    stretches["event"] = [0, 4, 4, 6]
    stretches["cursor"] = [0, 2, 2, 3]
    stretches["kind"] = [Boundary.STEP, Boundary.FORWARD, Boundary.BACKWARD, Boundary.OPTIMIZER]
    stretches["layer"] = [0, 1, 1, 0]
    stretches["time_ns"] = 1_000_000_000
    return Profile(
        tensors=tensors,
        accesses=accesses,
        stretches=stretches,
        layers=("", "block"),
        slot_count=3,
        event_count=6,
        page_bytes=PAGE,
        peak_bytes=10 * PAGE,
        source="module",
        unattributed_pages=0,
        heap_base=HEAP,
    )


LARGE = 64
"""Pages of the large toy for each page of the toy."""


def large_profile() -> Profile:
    """The toy with tensors 64 times as large; an access reads all bytes and writes half of them."""
    profile = toy_profile()
    tensors, rows = profile.tensors.copy(), profile.accesses.copy()
    tensors["bytes"] *= LARGE
    tensors["address"] = profile.heap_base + (tensors["address"] - profile.heap_base) * LARGE
    rows["bytes_read"] *= LARGE
    rows["bytes_written"] = rows["bytes_read"] // 2
    rows["pages"] *= LARGE
    rows["page_accesses"] *= LARGE
    return replace(profile, tensors=tensors, accesses=rows, peak_bytes=LARGE * profile.peak_bytes)


def move(
    boundary: int, deadline: int, tensor: int, space: Space, tier: int, page: int, pages: int
) -> tuple[int, ...]:
    return boundary, deadline, tensor, space, tier, page * PAGE, pages * PAGE


def toy_plan() -> Plan:
    """A plan made by hand for a budget of 7 pages.

    page of the arena   0     pool          scratch
                        1..2  fast-born     activation, dropped
                        3..4  slow-born     gradient
    heap                0..3  state, used in stretch 3: pages 0..1 are promoted in stretch 2 and
                              demoted in stretch 0, pages 2..3 are always slow
                        4..5  parameter: fast for the whole step

    Moving the whole state would charge 9 pages in stretch 0: pool 1, activation 2, parameter 2,
    state in flight 4. So only half of the state moves (pages 0..1). With this plan, the four
    stretches are charged 7, 5, 7 and 5 pages.
    """
    slots = np.zeros(3, SLOT_DTYPE)
    slots["bytes"] = [2 * PAGE, PAGE - 100, 2 * PAGE]
    slots["offset"] = [PAGE, 0, 3 * PAGE]
    slots["flags"] = [SLOT_PLANNED | SLOT_DROP, SLOT_PLANNED, SLOT_PLANNED]
    moves = np.array(
        [move(0, 1, 3, Space.HEAP, 1, 0, 2), move(2, 3, 3, Space.HEAP, 0, 0, 2)], MOVE_DTYPE
    )
    initial = np.array(
        [
            move(0, 0, 3, Space.HEAP, 0, 0, 2),
            move(0, 0, 3, Space.HEAP, 1, 2, 2),
            move(0, 0, 4, Space.HEAP, 0, 4, 2),
        ],
        MOVE_DTYPE,
    )
    return Plan(
        policy="by hand",
        budget_bytes=7 * PAGE,
        layout=Layout(
            slots=slots,
            cuts=np.zeros(0, np.uint32),
            regions=(
                Region(0, PAGE, 0, "pool"),
                Region(PAGE, 2 * PAGE, 0, "fast-born"),
                Region(3 * PAGE, 2 * PAGE, 1, "slow-born"),
            ),
            waits=np.full(4, -1, np.int32),
            arena_bytes=5 * PAGE,
            heap_tier=1,
        ),
        moves=moves,
        initial_tier=np.array([255, 255, 255, 0, 0], np.uint8),
        reasons=("",) * 5,
        predicted=Prediction(0, 0, 0, 0, 0.0),
        initial=initial,
    )


def with_layout(plan: Plan, **changes: object) -> Plan:
    return replace(plan, layout=replace(plan.layout, **changes))  # type: ignore[arg-type]


def late_plan(plan: Plan) -> Plan:
    """The plan, changed so that all promotions are late by plan: the process can stall for them."""
    plan = replace(plan, late=plan.moves["tier"] == 0)
    waits = plan.layout.waits.copy()
    stalls = stall_boundaries(plan)
    waits[stalls] = (stalls - 1) % len(waits)
    return with_layout(plan, waits=waits)


def large_plan() -> Plan:
    """toy_plan() for the large toy, with a budget of 7 * 64 pages."""
    plan = toy_plan()
    slots, tables = plan.layout.slots.copy(), (plan.moves.copy(), plan.initial.copy())
    slots["offset"] *= LARGE
    slots["bytes"] *= LARGE
    for table in tables:
        table["offset"] *= LARGE
        table["bytes"] *= LARGE
    regions = tuple(
        replace(region, offset=region.offset * LARGE, bytes=region.bytes * LARGE)
        for region in plan.layout.regions
    )
    layout = replace(
        plan.layout, slots=slots, regions=regions, arena_bytes=LARGE * plan.layout.arena_bytes
    )
    return replace(
        plan, layout=layout, moves=tables[0], initial=tables[1], budget_bytes=LARGE * 7 * PAGE
    )
