# SPDX-License-Identifier: Apache-2.0
"""Invalid plans are rejected. Each invariant is violated by at least one of these plans."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import PART_DTYPE, SLOT_DROP_PARTS, SLOT_PLANNED, Plan, Region, Space
from sentineld.model.protocol import Placement
from sentineld.plan.check import PlanError, verify
from tests.unit.plan.toys import PAGE, move, toy_plan, toy_profile, with_layout


def slots(plan: Plan, name: str, slot: int, value: int) -> Plan:
    changed = plan.layout.slots.copy()
    changed[name][slot] = value
    return with_layout(plan, slots=changed)


def parts(plan: Plan, *rows: tuple[int, int, int]) -> Plan:
    """The plan, changed so that slot 2 drops only parts of its pages.

    rows: the table of dropped parts, as (offset, bytes, slot).
    """
    table = np.array([(*row, 0) for row in rows], PART_DTYPE)
    return with_layout(slots(plan, "flags", 2, SLOT_PLANNED | SLOT_DROP_PARTS), parts=table)


def moves(plan: Plan, *rows: tuple[int, ...]) -> Plan:
    return replace(plan, moves=np.array(list(rows), plan.moves.dtype))


DOWN = move(0, 1, 3, Space.HEAP, 1, 0, 2)
UP = move(2, 3, 3, Space.HEAP, 0, 0, 2)

BROKEN: list[tuple[str, Callable[[Plan], Plan]]] = [
    ("slots", lambda p: with_layout(p, slots=p.layout.slots[:2])),
    ("slots", lambda p: slots(p, "bytes", 0, PAGE)),
    ("slots", lambda p: slots(p, "offset", 0, PAGE + 8)),
    ("slots", lambda p: slots(p, "offset", 2, 4 * PAGE)),
    ("slots", lambda p: parts(p, (PAGE, PAGE, 9))),
    ("slots", lambda p: parts(p, (PAGE, PAGE, 0))),
    ("slots", lambda p: parts(p, (3 * PAGE, 2 * PAGE, 2), (4 * PAGE, PAGE, 2))),
    ("regions", lambda p: with_layout(p, regions=p.layout.regions[:2])),
    ("regions", lambda p: with_layout(p, regions=(Region(0, 9 * PAGE, 0, "too long"),))),
    ("cuts", lambda p: with_layout(p, cuts=np.array([1], np.uint32))),
    ("waits", lambda p: with_layout(p, waits=np.full(3, -1, np.int32))),
    ("waits", lambda p: with_layout(p, waits=np.array([-1, 4, -1, -1], np.int32))),
    ("waits", lambda p: with_layout(p, waits=np.array([-1, -1, -1, 2], np.int32))),
    ("waits", lambda p: with_layout(p, waits=np.array([0, -1, -1, -1], np.int32))),
    ("waits", lambda p: replace(p, late=p.moves["tier"] == 0)),  # late promotions without a wait
    ("late", lambda p: replace(p, late=p.moves["tier"] != 0)),
    ("late", lambda p: replace(p, late=np.ones(1, np.bool_))),
    ("moves", lambda p: moves(p, UP, DOWN)),
    ("moves", lambda p: moves(p, move(4, 1, 3, Space.HEAP, 1, 0, 2))),
    ("moves", lambda p: moves(p, UP, move(2, 3, 4, Space.HEAP, 1, 4, 2))),
    ("moves", lambda p: moves(p, move(0, 1, 0, Space.ARENA, 1, 4, 2))),
    ("moves-hit-tensors", lambda p: moves(p, DOWN, UP, move(3, 0, 0, Space.ARENA, 1, 1, 2))),
    ("circle", lambda p: moves(p, DOWN)),
    ("clean-death", lambda p: _undropped(p)),
    ("moves-hit-tensors", lambda p: moves(p, move(0, 1, 0, Space.ARENA, 1, 1, 2))),
    ("kept-slow-pages", lambda p: moves(p, *_promoted_and_demoted())),
]


def _undropped(plan: Plan) -> Plan:
    """The plan, changed so that the activation is demoted and dies without a drop."""
    return moves(
        slots(plan, "flags", 0, SLOT_PLANNED), DOWN, move(1, 2, 0, Space.ARENA, 1, 1, 2), UP
    )


def _promoted_and_demoted() -> list[tuple[int, ...]]:
    """Moves of the state and of the gradient's slow pages. The gradient's pages are promoted at
    boundary 3 and demoted again at boundary 0 of the next step, before the gradient's death (see
    toy_profile()). The plan does not drop these pages when the gradient dies."""
    return [
        *(DOWN, move(0, 1, 2, Space.ARENA, 1, 3, 2)),
        *(UP, move(3, 3, 2, Space.ARENA, 0, 3, 2)),
    ]


@pytest.mark.parametrize(("name", "breaks"), BROKEN)
def test_invalid_plans_are_rejected_by_name(name: str, breaks: Callable[[Plan], Plan]) -> None:
    verify(toy_plan(), toy_profile(), 7 * PAGE)
    with pytest.raises(PlanError) as error:
        verify(breaks(toy_plan()), toy_profile(), 7 * PAGE)
    assert error.value.name == name


def test_parts_of_a_slot_are_dropped() -> None:
    verify(parts(toy_plan(), (4 * PAGE, PAGE, 2)), toy_profile(), 7 * PAGE)


def test_live_tensors_on_the_same_page_are_rejected() -> None:
    # The activation lives on pages 1 to 2 in the memory events [1, 5) of toy_profile(). The scratch
    # lives in [2, 3) and is put on page 2 as well.
    plan = slots(toy_plan(), "offset", 1, 2 * PAGE)
    with pytest.raises(PlanError, match="slots 0 and 1 are alive together"):
        verify(plan, toy_profile(), None)


@pytest.mark.parametrize(
    ("row", "placement"),
    [
        (0, Placement.SLOW),  # born fast
        (2, Placement.FAST),  # born slow
        (3, Placement.SLOW),  # moved
        (3, Placement.FAST),  # moved, and a part is always slow
        (4, Placement.SLOW),  # always fast
    ],
)
def test_placed_tensors_on_another_tier_are_rejected(row: int, placement: Placement) -> None:
    profile = toy_profile()
    profile.tensors["placed"][row] = placement
    with pytest.raises(PlanError, match=f"tensor {row} is not always {placement.name.lower()}"):
        verify(toy_plan(), profile, 7 * PAGE)


def test_placed_tensors_without_a_place_are_rejected() -> None:
    profile = toy_profile()
    profile.tensors["placed"][1] = Placement.FAST
    verify(toy_plan(), profile, 7 * PAGE)
    with pytest.raises(PlanError, match="the plan lacks the placed tensor 1"):
        verify(slots(toy_plan(), "flags", 1, 0), profile, 7 * PAGE)


def test_one_page_over_the_budget_is_rejected() -> None:
    with pytest.raises(PlanError, match="7 pages are charged in stretch 0, 6 allowed"):
        verify(toy_plan(), toy_profile(), 6 * PAGE)
    verify(toy_plan(), toy_profile(), None)


def test_a_budget_requires_a_tier_for_each_persistent_page() -> None:
    plan = moves(toy_plan())
    verify(plan, toy_profile(), 7 * PAGE)
    # First without any initial ranges, then without the range of the state's last two pages.
    for lacking in (plan.initial[:0], plan.initial[[0, 2]]):
        kept = replace(plan, initial=lacking)
        verify(kept, toy_profile(), None)
        with pytest.raises(PlanError, match="tensor 3 has pages without a tier") as error:
            verify(kept, toy_profile(), 7 * PAGE)
        assert error.value.name == "budget"


@pytest.mark.parametrize("placement", list(Placement))
def test_a_tensor_of_0_bytes_needs_no_tier(placement: Placement) -> None:
    plan, profile = toy_plan(), toy_profile()
    profile.tensors["bytes"][4], profile.tensors["placed"][4] = 0, placement
    profile.tensors["address"][4] += 4 * PAGE
    verify(replace(plan, initial=plan.initial[:2]), profile, 7 * PAGE)


def test_births_wait_for_the_demotions_that_make_room() -> None:
    # The whole state moves, and the activation is born in stretch 1 instead of 0. Charged pages
    # (the tensors' sizes are in toy_profile(); the pool has one page, see toy_plan()):
    # stretch 0: pool 1 + parameter 2 + state being demoted 4 = 7
    # stretch 1: pool 1 + parameter 2 + activation 2 = 5, or 9 if the state's demotion is late
    profile = toy_profile()
    tensors = profile.tensors.copy()
    tensors["birth_stretch"][0] = 1
    profile = replace(profile, tensors=tensors, accesses=profile.accesses[1:])
    plan = toy_plan()
    initial = plan.initial[[0, 2]].copy()
    initial["bytes"][0] = 4 * PAGE
    plan = moves(
        replace(plan, initial=initial),
        move(0, 1, 3, Space.HEAP, 1, 0, 4),
        move(2, 3, 3, Space.HEAP, 0, 0, 4),
    )
    verify(plan, profile, 9 * PAGE)
    ungated = slots(plan, "flags", 0, SLOT_PLANNED | 2)
    with pytest.raises(PlanError, match=r"births of stretch 1: up to 9 pages charged, 8 allowed"):
        verify(_in_time(ungated), profile, 8 * PAGE)
    waiting = with_layout(_in_time(ungated), waits=np.array([-1, 0, -1, -1], np.int32))
    verify(waiting, profile, 8 * PAGE)


def _in_time(plan: Plan) -> Plan:
    """The plan, changed so that the state is promoted in stretch 3, after the activation's death.
    If the state's demotion is in time, at most 7 pages are charged; if it is late, up to 9."""
    return moves(plan, move(0, 1, 3, Space.HEAP, 1, 0, 4), move(3, 0, 3, Space.HEAP, 0, 0, 4))


def test_an_error_crosses_a_process_with_all_parts() -> None:
    """Plans are verified in planning processes, which return pickled errors."""
    error = PlanError("budget", "2 pages are charged, 1 allowed")
    for copy in (pickle.loads(pickle.dumps(error)), error.fresh()):
        assert (type(copy), copy.name, copy.code) == (PlanError, "budget", "failed")
        assert str(copy) == str(error)
