# SPDX-License-Identifier: Apache-2.0
"""The kernel's automatic weights and the placement that follows from them, compared with values
computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.host.presets import preset_tiers
from sentineld.model.plan import Region
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.weighted_interleave import (
    TURNS_MAX,
    taking_turns,
    turn_pages,
    until_full,
    weights,
)
from sentineld.simulate.simulate import simulate
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.rivals.laps import Life, lap


def two(*rates: tuple[float, float]) -> Tiers:
    """Tiers with these read and write bandwidths, in GB/s."""
    each = tuple(
        Tier((node,), 0, read * 1e9, write * 1e9) for node, (read, write) in enumerate(rates)
    )
    return Tiers(each, 1e9, "toy")


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        # The lower bandwidth of each tier counts: 105 and 20. They are scaled to a sum of 32:
        # 32 x 105 / 125 = 26.9 and 32 x 20 / 125 = 5.1, rounded down.
        (two((105, 105), (24, 20)), (26, 5)),
        # The lower bandwidths are 24 and 8, with the sum 32 and the greatest common divisor 8.
        (two((48, 24), (8, 30)), (3, 1)),
        (two((8, 8), (8, 8)), (1, 1)),
        # 32 / 101 is less than 1, the smallest possible weight; 32 x 100 / 101 = 31.7.
        (two((100, 100), (1, 1)), (31, 1)),
        (two((0, 0), (0, 0)), (1, 1)),
        (two((105, 105)), (32, 1)),
    ],
)
def test_the_weights_are_the_kernels(tiers: Tiers, expected: tuple[int, int]) -> None:
    assert weights(tiers) == expected


def test_persistent_tensors_are_fast_until_the_tier_is_full() -> None:
    wanted = np.array([0, 5, 3, 4])
    assert until_full(wanted, 20).tolist() == [0, 5, 3, 4]
    assert until_full(wanted, 7).tolist() == [0, 5, 2, 0]
    assert until_full(wanted, 0).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (20, [(0, 3), (1, 2), (0, 3), (1, 2), (0, 2)]),
        (7, [(0, 3), (1, 2), (0, 3), (1, 2), (0, 1), (1, 1)]),
        (3, [(0, 3), (1, 9)]),
        (0, [(1, 12)]),
    ],
)
def test_pages_of_the_arena_take_turns_until_the_tier_is_full(
    room: int, expected: list[tuple[int, int]]
) -> None:
    # The region has 12 pages; the weights are 3 and 2.
    region = Region(5 * PAGE, 12 * PAGE, 1, "interleaved")
    found = taking_turns(region, 3, 2, room, PAGE)
    assert [(turn.tier, turn.bytes // PAGE) for turn in found] == expected
    ends = [turn.offset + turn.bytes for turn in found]
    assert [turn.offset for turn in found] == [region.offset, *ends[:-1]]


def test_turns_are_longer_if_there_would_be_too_many() -> None:
    assert turn_pages(26 * TURNS_MAX, 26) == 1
    assert turn_pages(26 * TURNS_MAX + 1, 26) == 2
    region = Region(0, 100_000 * PAGE, 1, "interleaved")
    found = taking_turns(region, 26, 5, 100_000, PAGE)
    assert sum(turn.tier == 0 for turn in found) <= TURNS_MAX


@pytest.mark.parametrize("units", [1, 4, 12])
def test_the_plan_keeps_the_budget_and_says_the_weights(units: int) -> None:
    profile, budget = large_profile(), units * LARGE * PAGE
    plan = policy("weighted-interleave").plan(profile, preset_tiers("cxl", 12), budget)
    verify(plan, profile, budget)
    assert plan.notes == ("weights 26:5",)
    assert not len(plan.moves)


def test_the_weights_gain_only_if_the_bandwidths_of_both_tiers_add_up() -> None:
    # One stretch of one second reads a persistent and a transient tensor, 3 GB in all. At 3 GB/s,
    # the reads take the whole second. The weights are 3:1. The fast tier takes 3/4 of a second for
    # 3/4 of the pages. The slow tier has a third of the bandwidth and takes the same time for the
    # other pages.
    pages = 3 * 10**9 // PAGE // 2
    profile = lap(1, Life(pages, (0,)), Life(pages, (0,), (0, 0)))
    for overlap, seconds in ((Overlap.TIERS, 0.75), (Overlap.NONE, 1.5)):
        tiers = replace(two((3, 3), (1, 1)), overlap=overlap)
        found = simulate(profile, policy("weighted-interleave"), tiers, 4 * 10**9)
        assert found.step_seconds == pytest.approx(seconds, rel=1e-3)
