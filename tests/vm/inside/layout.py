# SPDX-License-Identifier: Apache-2.0
"""The tensors of stepper.py and the plan for them; stepper.py has a diagram."""

from __future__ import annotations

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, SLOT_DTYPE, Layout, Plan, Prediction, Space
from sentineld.plan.expected import BIRTH_DTYPE, DROP_DTYPE, EVENT_DTYPE, ExpectedStep

PAGE = 4096
MIB = 256
"""One MiB, in pages."""

STRETCHES = 8
ARENA_PAGES = 12 * MIB
HEAP_PAGES = 14 * MIB
TENSORS = {
    "A": (int(Space.ARENA), 0, 6 * MIB),
    "S": (int(Space.ARENA), 8 * MIB, 2 * MIB),
    "P": (int(Space.HEAP), 0, 4 * MIB),
    "Q": (int(Space.HEAP), 6 * MIB, 6 * MIB),
}
"""Name -> (space, first page, number of pages)."""

USES = {
    0: ("P",),
    1: ("P",),
    2: ("P",),
    3: ("P",),
    4: ("P", "Q"),
    5: ("P",),
    6: ("P", "A"),
    7: ("P",),
}
ARRIVALS = {3: "Q", 5: "A"}
"""Stretch -> tensor whose promotion must be finished when the stretch ends."""

WAITS = (1, 2, 5)
"""Boundaries at which stepper.py waits until demotions have made room for births and promotions."""

BUDGET_BYTES = 13 * MIB * PAGE
"""Enough for P (4 MiB), S (2 MiB), one of A and Q (6 MiB each), and 1 MiB of slack."""


def move(boundary: int, deadline: int, name: str, tier: int) -> tuple[int, ...]:
    """A MOVE_DTYPE row for a whole tensor."""
    space, first, pages = TENSORS[name]
    number = list(TENSORS).index(name)
    return (boundary, deadline, number, space, tier, first * PAGE, pages * PAGE)


def make_plan() -> Plan:
    """The plan in stepper.py's diagram."""
    moves = [
        move(2, 3, "A", 1),
        move(3, 4, "Q", 0),
        move(5, 6, "Q", 1),
        move(5, 6, "A", 0),
    ]
    return Plan(
        policy="manual",
        budget_bytes=BUDGET_BYTES,
        layout=Layout(
            np.zeros(0, SLOT_DTYPE),
            np.zeros(0, np.uint32),
            (),
            np.full(STRETCHES, -1, np.int32),
            ARENA_PAGES * PAGE,
        ),
        moves=np.array(moves, MOVE_DTYPE),
        initial_tier=np.zeros(0, np.uint8),
        reasons=(),
        predicted=Prediction(0, 0, 0, 0, 0.0),
        initial=np.array([move(0, 0, "P", 0), move(0, 0, "Q", 1)], MOVE_DTYPE),
    )


def make_step() -> ExpectedStep:
    """The births and drops of a step."""
    _, first, pages = TENSORS["A"]
    _, scratch_first, scratch_pages = TENSORS["S"]
    births = [(1, 0, True, first * PAGE, pages * PAGE)]
    births += [(s, 0, False, scratch_first * PAGE, scratch_pages * PAGE) for s in range(STRETCHES)]
    events = [(s, True, tier, offset, size) for s, tier, _, offset, size in births]
    events += [(6, False, 0, first * PAGE, pages * PAGE)]
    return ExpectedStep(
        births=np.sort(np.array(births, BIRTH_DTYPE), order="stretch"),
        drops=np.array([(6, first * PAGE, pages * PAGE)], DROP_DTYPE),
        events=np.array(events, EVENT_DTYPE),
        heap_bytes=np.zeros(STRETCHES, np.int64),
    )
