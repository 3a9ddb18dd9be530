# SPDX-License-Identifier: Apache-2.0
"""The common parts of reactive policies: their plan, their intervals, and limited requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import SLOT_DROP
from sentineld.plan.policy import MoveRequest, Reactive
from sentineld.policies.registry import policy
from sentineld.policies.rivals.reactive import (
    STEP_PARTS,
    LastUse,
    exchange,
    intervals,
    move_requests,
    pages_below,
    total,
)
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers
from tests.unit.policies.rivals.observing import observation


def test_the_published_interval_and_parts_of_a_step_are_swept() -> None:
    # The toy's step takes four seconds.
    assert intervals(toy_profile(), 5.0) == [
        ("interval of 5 s, as published", 5e9),
        ("interval of 2 steps", 8e9),
        ("interval of 1 steps", 4e9),
        ("interval of 0.5 steps", 2e9),
        ("interval of 0.1 steps", 0.4e9),
    ]


@pytest.mark.parametrize(
    ("name", "settings", "last"),
    [
        ("ial", 1, "interval of 0.1 steps"),
        ("tpp", 3, "interval of 0.1 steps, demotes below 10.0% free"),
        ("memtis", 6, "interval of 0.1 steps, cooled every 16 intervals, warm below 0%"),
        ("damon", 4, "interval of 0.1 steps, demotes below 20.0% free, no quota"),
        ("numab", 3, "interval of 0.1 steps, hot within 100% of it, demotes below 2.0% free"),
        ("vtmm", 4, "interval of 0.1 steps, levels: 1, margin: 1"),
    ],
)
def test_each_interval_and_setting_has_a_new_reactor(name: str, settings: int, last: str) -> None:
    found = policy(name)
    assert isinstance(found, Reactive)
    one, other = (found.reactors(toy_profile()) for _ in range(2))
    assert len(one) == (1 + len(STEP_PARTS)) * settings
    if name != "numab":  # numab has no intervals: it ticks at every boundary
        steps = [reactor.interval_ns for _, reactor in one[settings::settings]]
        assert steps == [8e9, 4e9, 2e9, 0.4e9]
    assert one[-1][0] == last
    assert len({text for text, _ in one}) == len(one)
    assert all(a is not b for (_, a), (_, b) in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        *("damon", "deepum", "dragon", "ial", "memtis", "numab", "oc-dnn", "tpp", "tpp+colloid"),
        "vtmm",
    ],
)
def test_the_plan_is_a_layout_by_first_touch(name: str) -> None:
    plan = policy(name).plan(toy_profile(), two_tiers(), 7 * PAGE)
    assert plan.policy == name
    assert not len(plan.moves)
    assert {region.tier for region in plan.layout.regions} == {None}
    assert not policy(name).charges_budget
    # Only DeepUM is known to drop the pages of freed tensors.
    assert ((plan.layout.slots["flags"] & SLOT_DROP) != 0).tolist() == [name == "deepum"] * 3


def test_requests_stop_at_the_limit() -> None:
    pages = np.array([4, 0, 6, 9])
    assert move_requests([3, 1, 0, 2], pages, 1, 11) == [MoveRequest(3, 1, 9), MoveRequest(0, 1, 2)]
    assert move_requests([3], pages, 0, 0) == []
    assert move_requests([], pages, 0, 5) == []


def test_promotions_use_the_room_that_demotions_leave() -> None:
    rising, falling = np.array([3, 0]), np.array([2, 1])
    seen = observation([0, 0, 0, 0], [0, 10, 10, 0], free=3)
    down = [MoveRequest(2, 1, 10), MoveRequest(1, 1, 2)]
    up = [MoveRequest(3, 0, 10), MoveRequest(0, 0, 5)]
    assert exchange(seen, rising, falling, 12) == [*down, *up]
    # 15 pages are free after the demotions; 6 of them stay free.
    assert exchange(seen, rising, falling, 12, headroom_pages=6) == [*down, MoveRequest(3, 0, 9)]
    assert exchange(seen, rising, falling, -1) == [MoveRequest(3, 0, 3)]
    # 8 pages can be moved, half of them down.
    seen = observation([0, 0, 0, 0], [0, 10, 10, 0], free=3, moves=8)
    assert exchange(seen, rising, falling, 12) == [MoveRequest(2, 1, 4), MoveRequest(3, 0, 4)]


def test_demotions_begin_below_the_watermark() -> None:
    rising = np.array([0])
    for free, pages in ((100, 0), (99, 1 + 10), (0, 100 + 10)):
        seen = observation([0, 0, 0, 0], [0, 10, 10, 0], free=free, capacity=1000)
        assert pages_below(seen, rising, 0.1) == pages


def test_the_least_recently_used_cells_come_first() -> None:
    last_use, everything = LastUse(), np.ones(3, np.bool_)
    last_use.tick(np.array([True, False, True]))
    last_use.tick(np.array([False, False, True]))
    assert last_use.oldest(everything).tolist() == [1, 0]
    assert last_use.oldest(np.array([True, False, True])).tolist() == [0]


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(-2, 60))
def test_as_many_pages_are_requested_as_there_are_up_to_the_limit(
    pages: list[int], limit: int
) -> None:
    found = move_requests(range(len(pages)), np.array(pages, np.int64), 0, limit)
    assert total(found) == min(sum(pages), max(limit, 0))
    assert all(0 < request.pages <= pages[request.cell] for request in found)
    cells = [request.cell for request in found]
    assert cells == sorted(set(cells))
    # Only the last request may be for a part of its cell.
    assert all(request.pages == pages[request.cell] for request in found[:-1])
