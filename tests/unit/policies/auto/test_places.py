# SPDX-License-Identifier: Apache-2.0
"""Layouts of the arena for tensors that are born on one tier or across both tiers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import SLOT_DROP, SLOT_PLANNED, Layout
from sentineld.model.profile import Profile
from sentineld.plan.items import tensor_pages
from sentineld.plan.packing import alive_together
from sentineld.plan.turnover import first_moments
from sentineld.policies.auto.places import Births, lay_out
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.rivals.laps import Life, lap

ACTIVATION, SCRATCH, GRADIENT = range(3)


def births(
    profile: Profile, rows: list[int], fast: dict[int, int], moved: tuple[int, ...] = ()
) -> Births:
    """Births for lay_out(). rows: the tensors to place. fast: number of pages that are born fast,
    by tensor. moved: tensors that move."""
    count = len(profile.tensors)
    fast_pages, moves = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    fast_pages[list(fast)] = list(fast.values())
    moves[list(moved)] = True
    none = np.zeros(count, np.int64)
    free = np.zeros(int(first_moments(profile)[-1]), np.int64)
    return Births(np.array(rows, np.int64), fast_pages, moves, none, free)


def regions(layout: Layout) -> list[tuple[str, int | None, int]]:
    """Name, tier and pages of each region."""
    return [(one.name, one.tier, one.bytes // PAGE) for one in layout.regions]


def test_tensors_lie_by_the_tier_of_their_birth() -> None:
    profile = large_profile()
    layout = lay_out(profile, births(profile, [0, 1, 2], {ACTIVATION: 128, SCRATCH: 63}))
    # Scratch and activation are alive together, so they share no page: 63 + 128 = 191 pages.
    assert regions(layout) == [("fast-born", 0, 191), ("slow-born", 1, 2 * LARGE)]
    dropped = (layout.slots["flags"] & SLOT_DROP) != 0
    assert dropped.tolist() == [True, True, False]
    assert np.all(layout.slots["flags"] & SLOT_PLANNED)
    # The second region begins at a multiple of 16 pages, because huge pages of 64 KiB need this
    # alignment.
    assert layout.arena_bytes == (192 + 2 * LARGE) * PAGE
    assert (layout.heap_tier, layout.waits.tolist()) == (1, [-1] * 4)


def test_moved_tensors_that_are_born_slow_lie_apart_and_are_dropped() -> None:
    profile = large_profile()
    layout = lay_out(profile, births(profile, [0, 1, 2], {}, moved=(GRADIENT,)))
    assert [name for name, _, _ in regions(layout)] == ["slow-born", "slow-born, moved"]
    assert ((layout.slots["flags"] & SLOT_DROP) != 0).tolist() == [False, False, True]


def test_a_tensor_that_is_born_on_both_tiers_lies_across_a_line() -> None:
    profile = large_profile()
    layout = lay_out(profile, births(profile, [ACTIVATION], {ACTIVATION: 48}))
    assert regions(layout) == [("fast-born part", 0, 48), ("slow-born part", 1, 80)]
    assert layout.slots["offset"][ACTIVATION] == 0


def test_tensors_that_are_never_alive_together_share_a_line() -> None:
    one, other = Life(64, (0, 1), (0, 1)), Life(32, (2, 3), (2, 3))
    profile = lap(4, one, other)
    layout = lay_out(profile, births(profile, [0, 1], {0: 16, 1: 24}))
    # Both tensors lie across the border of the two regions. The first region is as long as the
    # longer fast part (24 pages), the second one as long as the longer slow part (48 pages).
    assert regions(layout) == [("fast-born part", 0, 24), ("slow-born part", 1, 48)]
    assert (layout.slots["offset"] // PAGE).tolist() == [8, 0]
    together = lap(4, one, Life(32, (1, 2), (1, 2)))
    assert len(lay_out(together, births(together, [0, 1], {0: 16, 1: 24})).regions) == 4


def test_cuts_are_the_profile_s() -> None:
    profile = large_profile()
    profile.stretches["cut"][2] = True
    assert lay_out(profile, births(profile, [], {})).cuts.tolist() == [2]


lives = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 5), st.integers(0, 5), st.floats(0, 1), st.booleans()
    ),
    min_size=1,
    max_size=8,
)


@given(lives)
def test_each_page_is_born_on_its_tier_and_live_tensors_share_none(
    drawn: list[tuple[int, int, int, float, bool]],
) -> None:
    profile = lap(6, *(Life(pages, (), (min(a, b), max(a, b))) for pages, a, b, _, _ in drawn))
    pages = tensor_pages(profile)
    fast = {at: round(share * int(pages[at])) for at, (*_, share, _) in enumerate(drawn)}
    moved = tuple(at for at, one in enumerate(drawn) if one[4])
    layout = lay_out(profile, births(profile, list(range(len(drawn))), fast, moved))
    tier_of = {
        page: one.tier
        for one in layout.regions
        for page in range(one.offset // PAGE, (one.offset + one.bytes) // PAGE)
    }
    start = (layout.slots["offset"][profile.tensors["slot"]] // PAGE).astype(np.int64)
    for at, size in enumerate(pages.tolist()):
        born = [tier_of[page] for page in range(int(start[at]), int(start[at]) + size)]
        assert born == [0] * fast[at] + [1] * (size - fast[at])
    birth = profile.tensors["birth_event"].astype(np.int64)
    death = profile.tensors["death_event"].astype(np.int64)
    for at in range(len(drawn)):
        together = alive_together(birth, death, int(birth[at]), int(death[at]))
        shares = (start < start[at] + pages[at]) & (start[at] < start + pages)
        assert np.flatnonzero(together & shares).tolist() == [at]
