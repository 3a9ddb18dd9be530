# SPDX-License-Identifier: Apache-2.0
"""Variants of the timing model in the simulator, and the step-time bound under them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from sentineld.model.plan import MOVE_DTYPE, SLOT_DROP, Plan, Space
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Boundary
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.model.timing import timing_of
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from sentineld.simulate.steady import steady_step_ns
from tests.unit.plan.toys import HEAP, PAGE, large_plan, large_profile
from tests.unit.policies.tiering import tiers

SECOND_NS = 1_000_000_000
FAST_BYTES_PER_S = 8e9


class Tensor(NamedTuple):
    """A persistent tensor if `birth` is negative; otherwise a tensor that is born at event `birth`,
    in stretch 0, and dies at event `death`, in stretch 1."""

    pages: int
    birth: int = -1
    death: int = -1


class Access(NamedTuple):
    """An access of a stretch. seconds: time that it takes in fast memory."""

    stretch: int
    tensor: int
    seconds: float
    writes: bool = False


def step(
    tensors: list[Tensor], accesses: list[Access], times_ns: list[int], events: list[int]
) -> Profile:
    """A profile. events: the index of each stretch's first event, then the count of all events."""
    table = np.zeros(len(tensors), TENSOR_DTYPE)
    pages = np.array([tensor.pages for tensor in tensors])
    lasts = np.array([tensor.birth < 0 for tensor in tensors])
    table["bytes"] = pages * PAGE
    table["address"] = HEAP + PAGE * (np.cumsum(pages) - pages)
    table["slot"] = np.where(lasts, -1, np.cumsum(~lasts) - 1)
    table["kind"] = np.where(lasts, Kind.PERSISTENT, Kind.ACTIVATION)
    table["birth_event"] = [max(tensor.birth, 0) for tensor in tensors]
    table["death_event"] = np.where(lasts, events[-1], [tensor.death for tensor in tensors])
    table["death_stretch"] = np.where(lasts, len(times_ns) - 1, 1)
    rows = np.zeros(len(accesses), ACCESS_DTYPE)
    for at, access in enumerate(accesses):
        size = int(access.seconds * FAST_BYTES_PER_S)
        amounts = (0, size) if access.writes else (size, 0)
        pages = tensors[access.tensor].pages
        rows[at] = (access.stretch, access.tensor, *amounts, pages, pages)
    stretches = np.zeros(len(times_ns), STRETCH_DTYPE)
    stretches["event"], stretches["cursor"] = events[:-1], np.arange(len(times_ns))
    stretches["time_ns"] = times_ns
    stretches["kind"] = [Boundary.STEP] + [Boundary.FORWARD] * (len(times_ns) - 1)
    return Profile(
        tensors=table,
        accesses=rows,
        stretches=stretches,
        layers=("",),
        slot_count=int((~lasts).sum()),
        event_count=events[-1],
        page_bytes=PAGE,
        peak_bytes=int(table["bytes"].sum()),
        source="module",
        unattributed_pages=0,
        heap_base=HEAP,
    )


def two(
    read_ratio: float, pages_per_s: float, write_ratio: float = 0.0, **variant: object
) -> Tiers:
    """Two tiers. Ratios: bandwidth of the fast tier divided by that of the slow tier."""
    rate = FAST_BYTES_PER_S
    slow = Tier((1,), 0, rate / read_ratio, rate / (write_ratio or read_ratio))
    plain = Tiers((Tier((0,), 0, rate, rate), slow), pages_per_s * PAGE, "toy")
    return replace(plain, **variant)  # type: ignore[arg-type]


def dropping(plan: Plan) -> Plan:
    """The plan, but each transient tensor's pages are dropped at its death."""
    slots = plan.layout.slots.copy()
    slots["flags"] |= SLOT_DROP
    return replace(plan, layout=replace(plan.layout, slots=slots))


@pytest.mark.parametrize("share", [1.0, 0.0, 0.5])
def test_the_toys_steady_step_by_hand(share: float) -> None:
    # In the steady step, slow memory serves 2 units of 64 pages in stretch 2 and 4 units in stretch
    # 3. In all, these two stretches access 6 and 8 units. An access reads a unit and writes half of
    # it. With the bandwidths of tiers() (policies/tiering.py), this takes 65,536 ns in fast memory
    # and 4 times as long in slow memory. share: the time of computation, divided by the time that
    # all accesses would take in fast memory.
    profile = large_profile()
    units, slow_units = np.array([3, 2, 6, 8]), np.array([0, 0, 2, 4])
    memory_ns = 65536 * units
    times = np.rint(memory_ns * (1 + share)).astype(np.uint64)
    stretches = profile.stretches.copy()
    stretches["time_ns"] = times
    profile = replace(profile, stretches=stretches)
    extra_ns = 3 * 65536 * slow_units
    expected = {
        Overlap.NONE: times + extra_ns,
        Overlap.COMPUTE: np.maximum(times, memory_ns + extra_ns),
        Overlap.TIERS: times
        - memory_ns
        + np.maximum(65536 * (units - slow_units), 4 * 65536 * slow_units),
    }
    for overlap, by_hand in expected.items():
        found = replace(tiers(1e9), overlap=overlap)
        assert steady_step_ns(large_plan(), profile, found) == pytest.approx(float(by_hand.sum()))


@pytest.mark.parametrize("birth", [1, 50, 99])
def test_late_births_gain_as_much_as_early_ones(birth: int) -> None:
    # Half of the first tensor is slow, and almost nothing else uses memory. Accesses to the two
    # tiers overlap, so the accesses to this tensor take half as long as they would on one tier.
    profile = step(
        [Tensor(1000, birth, 100), Tensor(20)],
        [Access(0, 0, 0.9), Access(1, 1, 0.001)],
        [SECOND_NS, SECOND_NS],
        [0, 100, 101],
    )
    found = two(1.001, 1e3, overlap=Overlap.TIERS)
    chosen = policy("auto")
    plan = chosen.plan(profile, found, 525 * PAGE)
    for one in (plan, dropping(plan)):
        taken = simulate(profile, chosen, found, 525 * PAGE, plan=one).step_seconds
        assert taken == pytest.approx(2 - 0.45, rel=0.03)
        assert bound_seconds(profile, found, 525 * PAGE) <= taken


def move(boundary: int, tier: int, deadline: int, offset: int, pages: int) -> np.ndarray:
    """A move of pages of the heap."""
    made = np.zeros(1, MOVE_DTYPE)
    made["boundary"], made["deadline"], made["space"] = boundary, deadline, Space.HEAP
    made["tier"], made["offset"], made["bytes"] = tier, offset * PAGE, pages * PAGE
    return made


def test_accesses_after_a_late_birth_keep_moves_from_the_slow_tier_in_the_next_stretch() -> None:
    # The activation is born slow at the end of stretch 0, in which the other two tensors exchange
    # their tiers. The profile counts the accesses to the activation in stretch 0. But because of
    # the late birth, they keep the slow tier busy mostly in stretch 1, which is long enough for
    # them.
    size, room = 1000, 1010
    profile = step(
        [Tensor(size), Tensor(size), Tensor(10 * size, 99, 100)],
        [Access(0, 1, 0.45), Access(0, 2, 0.45), Access(1, 0, 1.8)],
        [SECOND_NS, 2 * SECOND_NS],
        [0, 100, 101],
    )
    plain = two(1.5, 2 * size / 0.95)
    chosen = policy("auto")
    plan = dropping(chosen.plan(profile, plain, room * PAGE))
    assert len(plan.moves) == 4
    found = replace(plain, moves_yield=True)
    taken = simulate(profile, chosen, found, room * PAGE, plan=plan).step_seconds
    assert bound_seconds(profile, found, room * PAGE) <= taken


def test_under_overlapping_computation_births_only_lengthen_the_stretch() -> None:
    # The activation is born on the pages of a slow tensor that died shortly before. If the
    # simulator counted these pages as the activation's from the beginning of the stretch, it would
    # overestimate the time before the birth, in which the state moves out.
    state, activation, small, room = 1000, 1000, 100, 1144
    profile = step(
        [Tensor(state), Tensor(small, 10, 210), Tensor(activation, 250, 310),
         Tensor(small, 252, 305)],
        [Access(2, 0, 0.05, True), Access(2, 2, 0.05, True), Access(2, 3, 0.8),
         Access(0, 1, 0.001)],
        [SECOND_NS, SECOND_NS, SECOND_NS, 2 * SECOND_NS],
        [0, 100, 200, 300, 400],
    )  # fmt: skip
    tensors = profile.tensors.copy()
    tensors["birth_stretch"], tensors["death_stretch"] = [0, 0, 2, 2], [3, 2, 3, 3]
    profile = replace(profile, tensors=tensors)
    found = two(2.25, state / 0.94, 100.0, overlap=Overlap.COMPUTE)
    plan = dropping(policy("fast-only").plan(profile, found, room * PAGE))
    slots = plan.layout.slots.copy()
    slots["offset"][2] = slots["offset"][0]
    demotion = move(1, 1, 2, int(slots["offset"][0]) // PAGE, small)
    demotion["space"] = Space.ARENA
    plan = replace(
        plan,
        layout=replace(plan.layout, slots=slots),
        moves=np.concatenate([demotion, move(2, 1, 2, 0, state), move(3, 0, 0, 0, state)]),
    )
    taken = steady_step_ns(plan, profile, found) / 1e9
    assert bound_seconds(profile, found, room * PAGE) <= taken


def test_a_birth_that_shortens_the_stretch_does_not_shorten_the_time_before_it() -> None:
    # The state moves out before the activation is born in the middle of stretch 0. The third tensor
    # is born later. Accesses to this tensor use both tiers at the same time, which shortens the
    # stretch.
    state, activation, room = 1000, 1000, 1044
    profile = step(
        [Tensor(state), Tensor(activation, 50, 110), Tensor(100, 52, 100)],
        [Access(0, 0, 0.05, True), Access(0, 1, 0.05, True), Access(0, 2, 0.8)],
        [SECOND_NS, SECOND_NS * 3 // 2, 1000],
        [0, 100, 299, 300],
    )
    found = two(1.01, state / 0.499, 10.0, overlap=Overlap.TIERS)
    plan = dropping(policy("fast-only").plan(profile, found, room * PAGE))
    moves = np.zeros(2, MOVE_DTYPE)
    moves[0] = (0, 1, 0, Space.HEAP, 1, 0, state * PAGE)
    moves[1] = (1, 0, 0, Space.HEAP, 0, 0, state * PAGE)
    plan = replace(plan, moves=moves)
    taken = steady_step_ns(plan, profile, found) / 1e9
    assert taken < 2.1
    assert bound_seconds(profile, found, room * PAGE) <= taken


def test_accesses_to_the_slow_tier_keep_moves_from_it() -> None:
    timing = timing_of(two(2.0, 1000.0, moves_yield=True))
    profile = step([Tensor(100)], [Access(0, 0, 0.25)], [SECOND_NS, SECOND_NS], [0, 1, 1])
    assert timing.busy_ns(profile).tolist() == [0.5e9]
    assert timing_of(two(2.0, 1000.0)).busy_ns(profile).tolist() == [0.0]


def test_without_bandwidths_nothing_overlaps_and_no_move_yields() -> None:
    known = two(2.0, 1000.0, overlap=Overlap.COMPUTE, moves_yield=True)
    assert (timing_of(known).overlap, timing_of(known).moves_yield) == (Overlap.COMPUTE, True)
    fast, slow = known.tiers
    for pair in (
        (replace(fast, write_bytes_per_s=0.0), slow),
        (fast, replace(slow, read_bytes_per_s=0.0)),
    ):
        timing = timing_of(replace(known, tiers=pair))
        assert (timing.overlap, timing.moves_yield) == (Overlap.NONE, False)
