# SPDX-License-Identifier: Apache-2.0
"""Steps whose tensors use the same pages in turn, and a model of their pages."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sentineld.model.plan import (
    MOVE_DTYPE,
    SLOT_DROP,
    SLOT_DTYPE,
    SLOT_PLANNED,
    Layout,
    Plan,
    Prediction,
    Region,
)
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Placement
from sentineld.plan.drops import drops
from sentineld.plan.turnover import first_moments

PAGE = 4096
FAST_PAGES, SLOW_PAGES = 6, 4


def step(
    lives: list[tuple[int, int, int, int, bool]], per_stretch: int = 2
) -> tuple[Plan, Profile]:
    """A step with the given tensors. Tensors that are alive at the same time share no page.

    lives: (first page, pages, birth, death, dropped); birth and death are events. A death at or
    before the birth is in the next step.
    """
    events = 1 + max((max(birth, death) for _, _, birth, death, _ in lives), default=0)
    count = -(-events // per_stretch)
    tensors = np.zeros(len(lives), TENSOR_DTYPE)
    slots = np.zeros(len(lives), SLOT_DTYPE)
    for row, (first, pages, birth, death, dropped) in enumerate(lives):
        tensors[row] = (
            *(row, Kind.ACTIVATION, pages * PAGE, 0, birth, death),
            *(birth // per_stretch, death // per_stretch, death <= birth, Placement.AUTO),
        )
        slots[row] = (pages * PAGE, first * PAGE, SLOT_PLANNED | (SLOT_DROP if dropped else 0), 0)
    stretches = np.zeros(count, STRETCH_DTYPE)
    stretches["event"] = np.arange(count) * per_stretch
    stretches["time_ns"] = 1000
    profile = Profile(
        tensors=tensors,
        accesses=np.zeros(0, ACCESS_DTYPE),
        stretches=stretches,
        layers=(),
        slot_count=len(lives),
        event_count=events,
        page_bytes=PAGE,
        peak_bytes=PAGE,
        source="shim",
        unattributed_pages=0,
    )
    last = max((first + pages for first, pages, *_ in lives), default=0)
    regions = (
        Region(0, FAST_PAGES * PAGE, 0, "fast"),
        Region(FAST_PAGES * PAGE, max(SLOW_PAGES, last - FAST_PAGES) * PAGE, 1, "slow"),
    )
    layout = Layout(
        slots=slots,
        cuts=np.zeros(0, np.uint32),
        regions=regions,
        waits=np.full(count, -1, np.int32),
        arena_bytes=max(FAST_PAGES + SLOW_PAGES, last) * PAGE,
    )
    plan = Plan(
        policy="test",
        budget_bytes=1 << 30,
        layout=layout,
        moves=np.zeros(0, MOVE_DTYPE),
        initial_tier=np.zeros(len(lives), np.uint8),
        reasons=(),
        predicted=Prediction(0, 0, 0, 0, 0.0),
    )
    return plan, profile


@st.composite
def steps(draw: st.DrawFn) -> tuple[Plan, Profile]:
    """Steps of tensors on ten pages; each event is one birth or one death.

    No tensor is born in a stretch and dies in the same stretch of the next step: residency() would
    count such a tensor for the whole stretch.
    """
    per_stretch = draw(st.integers(1, 4))
    wanted = draw(
        st.lists(
            st.tuples(
                st.integers(0, FAST_PAGES + SLOW_PAGES - 1), st.integers(1, 5), st.booleans()
            ),
            min_size=1,
            max_size=8,
        )
    )
    order = draw(st.permutations([*range(len(wanted)), *range(len(wanted))]))
    taken: list[tuple[set[int], set[int]]] = []
    lives = []
    events = len(order)
    for row, (first, pages, dropped) in enumerate(wanted):
        birth, death = (at for at, who in enumerate(order) if who == row)
        if draw(st.booleans()):
            birth, death = death, birth
        if death <= birth and death // per_stretch == birth // per_stretch:
            continue
        alive = {at % events for at in range(birth, death if death > birth else death + events)}
        lie = set(range(first, min(first + pages, FAST_PAGES + SLOW_PAGES)))
        if any(alive & times and lie & pages_ for times, pages_ in taken):
            continue
        taken.append((alive, lie))
        lives.append((min(lie), len(lie), birth, death, dropped))
    return step(lives, per_stretch)


def resident(plan: Plan, profile: Profile) -> tuple[list[int], int]:
    """The number of resident fast pages at each moment of a steady step, and the number of births
    of fast pages in this step."""
    dropped_pages: dict[int, set[int]] = {}
    for row in drops(plan.layout, PAGE):
        first, past = int(row["offset"]), int(row["offset"] + row["bytes"])
        dropped_pages.setdefault(int(row["slot"]), set()).update(range(first // PAGE, past // PAGE))
    slots, tensors = plan.layout.slots, profile.tensors
    first = first_moments(profile)
    happens: dict[int, list[tuple[int, int]]] = {}
    for row, tensor in enumerate(tensors):
        for birth, name in ((1, "birth"), (0, "death")):
            at = int(tensor[f"{name}_event"]) + int(tensor[f"{name}_stretch"]) + 1
            happens.setdefault(at % int(first[-1]), []).append((birth, row))
    there: set[int] = set()
    found: list[int] = []
    born = 0
    for turn in range(3):
        for moment in range(int(first[-1])):
            for birth, row in sorted(happens.get(moment, [])):
                begin = int(slots["offset"][row]) // PAGE
                pages = set(range(begin, begin + int(tensors["bytes"][row]) // PAGE))
                pages &= set(range(FAST_PAGES))
                if birth:
                    born += len(pages - there) if turn == 2 else 0
                    there |= pages
                else:
                    there -= dropped_pages.get(row, set())
            if turn == 2:
                found.append(len(there))
    return found, born
