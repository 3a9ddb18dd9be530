# SPDX-License-Identifier: Apache-2.0
"""The account of fast memory over a step of four stretches and eight arena pages.

pages   0 1 2 3 | 4 5 6 7
born in stretch 1, fast, dropped in 2 | born in stretch 2, fast, kept
"""

from __future__ import annotations

import numpy as np

from sentineld.migrate.charge import Charge
from sentineld.migrate.expected import BIRTH_DTYPE, DROP_DTYPE, ExpectedStep
from sentineld.migrate.residency import ABSENT, Spaces
from sentineld.plan.model import Space
from sentineld.tiers import Tier, Tiers

PAGE = 4096
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 30)), 1e8, "config")


def make(
    births: list[tuple[int, int, bool, int, int]],
    drops: list[tuple[int, int, int]],
    budget_pages: int,
    overhead_bytes: int = 0,
) -> Charge:
    step = ExpectedStep(
        np.array([(s, t, v, o * PAGE, n * PAGE) for s, t, v, o, n in births], BIRTH_DTYPE),
        np.array([(s, o * PAGE, n * PAGE) for s, o, n in drops], DROP_DTYPE),
        np.zeros(4, np.int64),
    )
    spaces = Spaces(TIERS, {Space.ARENA: (1 << 30, 8 * PAGE), Space.HEAP: (1 << 32, 8 * PAGE)})
    return Charge(spaces, step, budget_pages * PAGE, lambda: overhead_bytes)


BIRTHS = [(1, 0, True, 0, 4), (2, 0, True, 4, 4)]
DROPS = [(2, 0, 4)]


def test_births_are_charged_when_their_stretch_begins_and_drops_when_it_is_over() -> None:
    charge = make(BIRTHS, DROPS, 100, overhead_bytes=PAGE)
    assert charge.charged_bytes(0) == PAGE
    charge.begin(1)
    assert charge.charged_bytes(1) == 5 * PAGE
    charge.end(1)
    charge.begin(2)
    assert charge.charged_bytes(2) == 9 * PAGE
    assert charge.end(2)["offset"].tolist() == [0]
    assert charge.charged_bytes(3) == 5 * PAGE


def test_room_leaves_place_for_the_next_stretchs_births() -> None:
    charge = make(BIRTHS, DROPS, budget_pages=9)
    charge.begin(0)
    assert charge.room_bytes(0) == 5 * PAGE  # 9 less the 4 of stretch 1
    charge.begin(1)
    assert charge.room_bytes(1) == 1 * PAGE  # 9 less 4 there, less the 4 of stretch 2


def test_room_counts_what_the_end_of_the_stretch_gives_back() -> None:
    charge = make([(0, 0, True, 0, 4), (1, 0, True, 4, 4)], [(0, 0, 4)], budget_pages=5)
    charge.begin(0)
    assert charge.room_bytes(0) == 1 * PAGE  # now 5 - 4; then 5 - 4 + 4 - 4


def test_pages_dropped_and_born_again_are_charged_again() -> None:
    charge = make([(0, 0, False, 0, 4), (0, 0, True, 0, 2)], [(0, 0, 4)], budget_pages=8)
    charge.begin(0)
    charge.end(0)
    arena = charge.spaces.maps[Space.ARENA]
    assert arena.nodes[:4].tolist() == [0, 0, ABSENT, ABSENT]


def test_pages_reborn_in_the_next_stretch_are_not_counted_as_gained() -> None:
    charge = make([(0, 0, False, 0, 4), (1, 0, True, 0, 4)], [(0, 0, 4)], budget_pages=6)
    charge.begin(0)
    assert charge.room_bytes(0) == 2 * PAGE


def test_demotions_that_are_not_done_make_no_room() -> None:
    charge = make([(1, 0, True, 0, 4)], [], budget_pages=8)
    charge.spaces.maps[Space.HEAP].nodes[:3] = 0
    charge.begin(0)
    assert charge.room_bytes(0) == 1 * PAGE  # 8 - 3 that wait to be demoted - 4 to be born
    charge.spaces.maps[Space.HEAP].nodes[:3] = 1
    assert charge.room_bytes(0) == 4 * PAGE


def test_slow_births_cost_nothing_and_first_touch_ones_are_charged() -> None:
    charge = make([(1, 1, True, 0, 4), (1, 255, True, 4, 1)], [], budget_pages=8)
    charge.begin(1)
    assert charge.charged_bytes(1) == PAGE
