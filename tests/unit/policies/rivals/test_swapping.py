# SPDX-License-Identifier: Apache-2.0
"""The swaps of a Book (policies/rivals/swaps.py) become a valid plan.

guests.py defines the step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.plan import MOVE_DTYPE, SLOT_DROP, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.check import verify
from sentineld.plan.residency import peak_fast_pages, residency
from sentineld.policies.registry import names, policy
from sentineld.policies.rivals.swapping import (
    SwappingPolicy,
    awaited_pages,
    in_order,
    swapping_plan,
    tier_ranges,
    with_layer_waits,
)
from sentineld.policies.rivals.swaps import Gap, gaps, open_book, swappable
from sentineld.simulate.simulate import simulate
from tests.conftest import examples
from tests.unit.policies.random_profiles import random_profiles
from tests.unit.policies.rivals.guests import with_guest
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

BUDGET = 3 * 64 * PAGE


def test_a_swap_becomes_two_moves() -> None:
    profile, tiers = with_guest(), moving(64)
    book = open_book(profile, tiers, BUDGET)
    assert book.try_swap(Gap(0, 0, 5))
    plan = swapping_plan("mine", book, tiers, BUDGET, ("a note",))
    verify(plan, profile, BUDGET)
    columns = ["boundary", "deadline", "tensor", "space", "tier", "offset", "bytes"]
    heap = int(Space.HEAP)
    assert plan.moves[columns].tolist() == [
        (1, 2, 0, heap, 1, 0, 64 * PAGE),
        (4, 5, 0, heap, 0, 0, 64 * PAGE),
    ]
    # The guest (tensor 3) is born in stretch 2, once the demotion that begins at boundary 1 has
    # made room.
    assert plan.layout.waits.tolist() == [-1, -1, 1, -1, -1, -1]
    assert plan.initial_tier.tolist() == [0, 0, 0, 255]
    assert (plan.policy, plan.notes) == ("mine", ("a note",))


def test_a_swap_across_the_step_s_end_begins_the_step_in_slow_memory() -> None:
    # The tensor is used in stretches 2 and 3 of 8. It is demoted in stretch 4 and promoted in
    # stretch 1 of the next step.
    profile, tiers = lap(8, Life(64, (2, 3))), moving(64)
    book = open_book(profile, tiers, 64 * PAGE)
    assert book.try_swap(Gap(0, 3, 10))
    plan = swapping_plan("mine", book, tiers, 64 * PAGE, ())
    verify(plan, profile, 64 * PAGE)
    assert plan.moves[["boundary", "deadline", "tier"]].tolist() == [(1, 2, 0), (4, 5, 1)]
    assert plan.initial[["tier", "offset", "bytes"]].tolist() == [(1, 0, 64 * PAGE)]


def test_slow_tensors_lie_in_slow_regions() -> None:
    profile, tiers = with_guest(), moving(64)
    book = open_book(profile, tiers, 4 * 64 * PAGE)
    for tensor in (1, 3):
        book.make_slow(tensor)
    plan = swapping_plan("mine", book, tiers, 4 * 64 * PAGE, ())
    verify(plan, profile, 4 * 64 * PAGE)
    assert [(region.name, region.tier) for region in plan.layout.regions] == [("slow-born", 1)]
    assert plan.initial_tier.tolist() == [0, 1, 0, 255]


SWAPPING = [
    "g10",
    "capuchin",
    "flashneuron",
    "swapadvisor",
    "lms",
    "vdnn",
    "zero-offload",
    "zero-infinity",
    "superneurons",
    "tensile",
]


@pytest.mark.parametrize("name", SWAPPING)
def test_a_policy_without_a_plan_names_its_obstacle(name: str) -> None:
    with pytest.raises(SentinelError, match="infeasible as published") as error:
        policy(name).plan(with_guest(), moving(1), BUDGET)
    assert error.value.hint == "give the process more fast memory"


def with_short_lived() -> Profile:
    """Two tensors of 64 pages. One is persistent and used in stretches 0 and 4. The other one lives
    in stretch 2 only."""
    return lap(5, Life(64, (0, 4)), Life(64, (2,), (2, 2)))


@pytest.mark.parametrize("name", ["g10", "capuchin", "swapadvisor", "tensile"])
def test_short_lived_tensors_leave_their_room_when_they_die(name: str) -> None:
    # The budget has room for one of the tensors. The persistent one is slow in stretch 2.
    profile, budget = with_short_lived(), 72 * PAGE
    plan = policy(name).plan(profile, moving(64), budget)
    verify(plan, profile, budget)
    assert plan.moves[["boundary", "tensor", "tier"]].tolist() == [(1, 0, 1), (3, 0, 0)]
    assert plan.predicted.peak_fast_bytes == 64 * PAGE
    assert (plan.layout.slots["flags"] & SLOT_DROP).all()
    # The birth in stretch 2 waits until the demotion that began at boundary 1 has made room.
    assert plan.layout.waits.tolist() == [-1, -1, 1, -1, -1]
    found = simulate(profile, policy(name), moving(64), budget)
    assert found.step_seconds == pytest.approx(5)
    assert found.peak_fast_bytes <= budget


@pytest.mark.parametrize(("pages", "pool"), [(128, True), (72, False)])
def test_a_pool_saves_births_if_it_fits(pages: int, pool: bool) -> None:
    profile, tiers = with_short_lived(), replace(moving(64), birth_ns_per_byte=1.0)
    plan = policy("g10").plan(profile, tiers, pages * PAGE)
    verify(plan, profile, pages * PAGE)
    assert [region.name for region in plan.layout.regions] == ["pool" if pool else "short-lived"]
    # A dropped tensor of 64 pages is born anew in each step. This birth takes 1 ns per byte.
    births_ns = 0 if pool else 64 * PAGE
    assert plan.predicted.step_ns == pytest.approx(5e9 + births_ns, abs=2)
    # If births take no time, a pool has no use.
    plan = policy("g10").plan(profile, moving(64), pages * PAGE)
    assert [region.name for region in plan.layout.regions] == ["short-lived"]


def with_cuts(profile: Profile, every: int) -> Profile:
    """The profile, changed so that only every `every`-th stretch begins a layer. All other
    stretches begin at a cut, so some short-lived tensors (which die in the layer of their birth)
    live in several stretches."""
    stretches = profile.stretches.copy()
    stretches["kind"][np.arange(len(stretches)) % every != 0] = Boundary.CUT
    return replace(profile, stretches=stretches)


@given(random_profiles(tensors_max=60), st.integers(1, 4), st.booleans())
def test_a_book_s_usage_is_that_of_its_plan(profile: Profile, every: int, swaps: bool) -> None:
    profile, tiers = with_cuts(profile, every), preset_tiers("cxl", 1)
    book = open_book(profile, tiers, 2 * profile.peak_bytes)
    movable = np.flatnonzero(swappable(profile, book.short))
    for tensor in movable[::3].tolist():
        book.make_slow(tensor)
    for gap in gaps(book) if swaps else []:
        book.try_swap(gap)
    plan = swapping_plan("mine", book, tiers, 2 * profile.peak_bytes, ())
    # In the book, a page takes up room from the beginning of its promotion. In the plan's peak, it
    # takes up room from the end of its promotion.
    up = plan.moves[plan.moves["tier"] == 0]
    rising = np.bincount(up["boundary"], up["bytes"] // PAGE, minlength=profile.stretch_count)
    peaks = peak_fast_pages(plan, profile, residency(plan, profile))
    assert (peaks + rising).tolist() == book.usage.tolist()


FAMILY = [name for name in names() if isinstance(policy(name), SwappingPolicy)]


@pytest.mark.parametrize("name", FAMILY)
@settings(max_examples=examples(ci=4, long=200))
@given(
    profile=random_profiles(tensors_max=60),
    every=st.integers(1, 4),
    share=st.sampled_from([0.1, 0.4, 0.9]),
    preset=st.sampled_from(["cxl", "nvme"]),
    birth_ns_per_byte=st.sampled_from([0.0, 0.1]),
)
def test_plans_are_valid_if_births_take_time_or_not(
    name: str, profile: Profile, every: int, share: float, preset: str, birth_ns_per_byte: float
) -> None:
    profile, budget = with_cuts(profile, every), int(profile.peak_bytes * share)
    tiers = replace(preset_tiers(preset, 1), birth_ns_per_byte=birth_ns_per_byte)
    try:
        plan = policy(name).plan(profile, tiers, budget)
    except SentinelError as error:
        if error.message.startswith("infeasible"):
            return
        raise
    verify(plan, profile, budget)


def test_demotions_come_first_and_then_what_is_due_next() -> None:
    rows = [
        # boundary, deadline, tensor, space, tier, offset, bytes
        (3, 0, 0, 1, 0, 0, PAGE),  # due one stretch later
        (3, 2, 1, 1, 0, PAGE, PAGE),  # due three stretches later
        (3, 2, 2, 1, 1, 2 * PAGE, PAGE),
        (0, 1, 3, 1, 0, 3 * PAGE, PAGE),
        (3, 0, 4, 1, 0, 8 * PAGE, PAGE),
    ]
    expected = [3, 2, 0, 4, 1]
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]):
        found = in_order(np.array([rows[at] for at in order], MOVE_DTYPE), 4)
        assert found["tensor"].tolist() == expected


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 1 << 30))
def test_ranges_of_a_tensor_cover_its_pages_with_their_tiers(slow: list[bool], first: int) -> None:
    found = tier_ranges(7, np.array(slow), first * PAGE, PAGE)
    pages = []
    for row in found:
        begin, count = int(row["offset"]) // PAGE - first, int(row["bytes"]) // PAGE
        assert begin == len(pages)
        pages += [bool(row["tier"])] * count
    assert pages == slow
    assert set(found["tensor"].tolist()) == {7}
    # Adjacent pages on one tier are one range.
    assert (np.diff(found["tier"].astype(int)) != 0).all()


def with_cut() -> Profile:
    """A step of six stretches; stretch 3 begins at a cut within a layer."""
    profile = lap(6, Life(64, (0, 5)))
    stretches = profile.stretches.copy()
    stretches["kind"][3] = Boundary.CUT
    return replace(profile, stretches=stretches)


def test_the_next_layer_waits_for_demotions() -> None:
    moves = np.zeros(4, MOVE_DTYPE)
    moves["boundary"], moves["tier"] = [1, 2, 3, 5], [1, 1, 0, 1]
    none = np.full(6, -1)
    # Boundary 2 waits for the demotion of boundary 1. Boundary 3 is a cut, so boundary 4 waits for
    # the demotion of boundary 2; nothing waits for the promotion of boundary 3. The step's first
    # boundary waits for the demotion of the previous step's last boundary.
    assert with_layer_waits(none, moves, with_cut()).tolist() == [5, -1, 1, -1, 2, -1]
    # Of two waits at a boundary, the one for the later demotion is kept.
    known = np.array([3, -1, -1, -1, 3, 2])
    assert with_layer_waits(known, moves, with_cut()).tolist() == [5, -1, 1, -1, 3, 2]


def test_transfers_beyond_a_layer_s_end_are_awaited() -> None:
    book = open_book(with_cut(), moving(64), BUDGET)
    assert awaited_pages(book) == 0
    # Stretches 2 and 3 are one layer, and stretch 3 has time for the transfers that stretch 2
    # cannot finish. Stretch 4 is a layer by itself: the next layer has to wait for the
    # transfers that stretch 4 cannot finish.
    book.lanes[:] = [64, 64, -30, 40, -20, 64]
    assert awaited_pages(book) == 20
    book.lanes[5] = -7
    assert awaited_pages(book) == 27
