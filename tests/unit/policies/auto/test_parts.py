# SPDX-License-Identifier: Apache-2.0
"""Parts of the large toy's tensors (see large_profile()) for given numbers of fast pages."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.timing import timing_of
from sentineld.plan.items import tensor_pages
from sentineld.plan.residency import ABSENT
from sentineld.policies.auto.parts import GRAIN_PAGES, levels, parts, residency_of
from sentineld.policies.lp.groups import Groups, groups_of
from tests.unit.plan.toys import LARGE, large_profile
from tests.unit.policies.rivals.laps import Life, lap, moving
from tests.unit.policies.tiering import tiers

ACTIVATION, SCRATCH, GRADIENT, STATE, PARAMETER = range(5)


def toy_groups() -> Groups:
    """One group for each tensor, of 128, 63, 128, 256 and 128 pages."""
    return groups_of(large_profile(), timing_of(tiers(1.0)))


def fast_pages(**of: list[float]) -> np.ndarray:
    """A table (4 positions, 5 groups) for the large toy; entries that `of` does not give are 0.

    of: the fast pages of each named group, by position of its life.
    """
    table = np.zeros((4, 5))
    for name, values in of.items():
        table[: len(values), "activation scratch gradient state parameter".split().index(name)] = (
            values
        )
    return table


def test_levels_are_whole_grains_or_the_whole_group() -> None:
    found = levels(toy_groups(), fast_pages(state=[15.9, 16.0, 47.9, 256.0], scratch=[63.0]))
    assert found[:, STATE].tolist() == [0, 16, 32, 256]
    assert found[0, SCRATCH] == 63
    # A value that is less than a whole number of pages, but only by the solver's tolerance, is
    # rounded up to the whole number.
    found = levels(toy_groups(), fast_pages(state=[31.9995, 255.9995]))
    assert found[:2, STATE].tolist() == [32, 256]


def test_large_groups_have_a_larger_grain() -> None:
    profile = lap(3, *[Life(1024, (0, 2))] * 4)
    groups = groups_of(profile, timing_of(moving(1.0)))
    assert groups.pages.tolist() == [4096]
    assert levels(groups, np.array([[63.0], [64.0], [4095.0]]))[:, 0].tolist() == [32, 64, 4064]


def test_parts_of_a_tensor_that_moves_in_two_steps() -> None:
    # 64 pages of the state are always fast, 64 more pages are fast in positions 2 and 3 of the
    # state's life, and the other pages are slow.
    groups = toy_groups().take(np.array([STATE]))
    items, lives = parts(groups, levels(groups, np.array([[64.0], [64.0], [128.0], [128.0]])))
    assert items.tensor.tolist() == [STATE] * 3
    assert items.first_page.tolist() == [0, LARGE, 2 * LARGE]
    assert items.pages.tolist() == [LARGE, LARGE, 2 * LARGE]
    assert lives.fast.T.tolist() == [[True] * 4, [False, False, True, True], [False] * 4]
    assert lives.moving.T.tolist() == [[False] * 4, [False, True, False, True], [False] * 4]
    found = residency_of(items, lives)
    assert found.tier.T.tolist() == [[0] * 4, [1, 1, 0, 0], [1] * 4]
    assert found.end_tier.tolist() == [0, 1, 1]


def test_a_transient_tensor_is_absent_outside_its_life_and_keeps_its_last_tier() -> None:
    # The gradient is born in stretch 2 and lives for three stretches. Its pages are demoted in
    # position 1 of its life, which is stretch 3.
    groups = toy_groups().take(np.array([GRADIENT]))
    items, lives = parts(groups, levels(groups, np.array([[128.0], [128.0], [0.0], [0.0]])))
    found = residency_of(items, lives)
    assert found.tier[:, 0].tolist() == [1, ABSENT, 0, 0]
    assert found.moving[:, 0].tolist() == [False, False, False, True]
    assert found.end_tier.tolist() == [1]


def test_the_first_pages_of_a_group_are_fast() -> None:
    # A group has three tensors of 32 pages; 48 of these 96 pages are fast.
    groups = groups_of(lap(2, *[Life(32, (0, 1))] * 3), timing_of(moving(1.0)))
    items, lives = parts(groups, np.array([[48], [48]]))
    found = list(
        zip(items.tensor, items.first_page, items.pages, lives.fast[0].tolist(), strict=True)
    )
    assert found == [(0, 0, 32, True), (1, 0, 16, True), (1, 16, 16, False), (2, 0, 32, False)]
    assert not lives.moving.any()


@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5), min_size=4, max_size=4))
def test_parts_cover_their_tensors_and_hold_no_more_than_the_program_says(
    shares: list[list[float]],
) -> None:
    profile, groups = large_profile(), toy_groups()
    fast = levels(groups, np.array(shares) * groups.pages)
    items, lives = parts(groups, fast)
    pages = tensor_pages(profile)
    covered = np.bincount(items.tensor, items.pages, minlength=5)
    assert covered.tolist() == pages.tolist()
    for tensor in range(5):
        mine = np.flatnonzero(items.tensor == tensor)
        begins, sizes = items.first_page[mine], items.pages[mine]
        assert begins.tolist() == [0, *np.cumsum(sizes)[:-1].tolist()]
        assert not (begins % GRAIN_PAGES).any()
        length = int(groups.length[tensor])
        held = (lives.fast[:, mine] * sizes).sum(axis=1)
        assert (held[:length] <= fast[:length, tensor]).all()
        assert (held[:length] > fast[:length, tensor] - GRAIN_PAGES).all()
        assert not held[length:].any()
    # A persistent part ends a step on the tier on which it begins the next one.
    found = residency_of(items, lives)
    stays = items.persistent
    assert (found.end_tier[stays] == found.tier[0, stays]).all()
