# SPDX-License-Identifier: Apache-2.0
"""Moves of chunks, and the waits that births need."""

from __future__ import annotations

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, Space
from sentineld.plan.items import Items, chunks
from sentineld.plan.lives import Lives
from sentineld.plan.schedule import coalesce, deaths, initial_ranges, needed_waits, planned_moves
from tests.unit.plan.toys import PAGE, toy_profile


def lives_of(items: Items, drawn: list[str]) -> Lives:
    """The lives that the words in `drawn` describe: one word per chunk.

    A word has one letter per stretch, from the chunk's birth on. F: fast; s: slow; D: being
    demoted; U: being promoted.
    """
    table = np.array([list(word) for word in drawn]).T
    return Lives(
        np.zeros(len(drawn)), (table == "F") | (table == "D"), (table == "D") | (table == "U")
    )


def state_items() -> Items:
    """The toy's state and parameter in chunks of two pages: pages 0-1, 2-3 and 4-5 of the heap."""
    return chunks(toy_profile(), np.array([3, 4]), 2)


def test_neighbours_that_move_together_are_one_move() -> None:
    items = state_items()
    lives = lives_of(items, ["DsUF", "DsUF", "FFFF"])
    space, offset = np.full(5, Space.HEAP), np.array([0, 0, 0, 0, 4 * PAGE])
    moves = planned_moves(toy_profile(), items, lives, space, offset)
    columns = ["boundary", "deadline", "tensor", "tier", "offset", "bytes"]
    assert moves[columns].tolist() == [(0, 1, 3, 1, 0, 4 * PAGE), (2, 3, 3, 0, 0, 4 * PAGE)]


def test_moves_of_tensors_that_die_at_different_times_stay_apart() -> None:
    profile = toy_profile()
    rows = [(1, 2, tensor, Space.ARENA, 0, at * PAGE, PAGE) for at, tensor in enumerate((0, 1, 3))]
    moves = np.array(rows, MOVE_DTYPE)
    assert len(coalesce(moves)) == 1
    assert deaths(profile).tolist()[3:] == [-1, -1]
    apart = coalesce(moves, np.array([2, 2, 2, -1, -1]))
    assert apart["bytes"].tolist() == [2 * PAGE, PAGE]


def test_a_promotion_is_due_by_the_next_use_which_may_be_in_the_next_step() -> None:
    # The parameter is used in stretches 1, 2 and 3. A promotion that begins in stretch 3 is too
    # late for the use in this stretch. The next use is in stretch 1 of the next step, so the
    # promotion's deadline is boundary 1.
    items = state_items()
    lives = lives_of(items, ["ssss", "ssss", "DssU"])
    space, offset = np.full(5, Space.HEAP), np.array([0, 0, 0, 0, 4 * PAGE])
    moves = planned_moves(toy_profile(), items, lives, space, offset)
    assert moves[["boundary", "deadline", "tier"]].tolist() == [(0, 1, 1), (3, 1, 0)]


def test_first_tiers_are_exact_ranges() -> None:
    items = state_items()
    lives = lives_of(items, ["DsUF", "ssss", "FFFF"])
    offset = np.array([0, 0, 0, 0, 4 * PAGE])
    found = initial_ranges(toy_profile(), np.array([3, 4]), items, lives, offset)
    assert sorted(found[["offset", "bytes", "tier"]].tolist()) == [
        (0, 2 * PAGE, 0),
        (2 * PAGE, 2 * PAGE, 1),
        (4 * PAGE, 2 * PAGE, 0),
    ]


def test_tensors_of_0_bytes_have_no_initial_range() -> None:
    profile = toy_profile()
    profile.tensors["bytes"][4] = 0
    profile.tensors["address"][4] = profile.heap_base + 8 * PAGE
    items = chunks(profile, np.array([3, 4]), 4)
    offset = np.array([0, 0, 0, 0, 8 * PAGE])
    found = initial_ranges(profile, np.array([3, 4]), items, lives_of(items, ["FFFF"]), offset)
    assert found[["tensor", "offset", "bytes"]].tolist() == [(3, 0, 4 * PAGE)]


def test_a_wait_is_needed_only_if_births_would_not_fit() -> None:
    # Limit: 10 pages. Demotions: 4 pages at boundary 0 and 3 pages at boundary 1.
    # stretch      0  1  2  3
    # charged      9  5  6  2
    # births       .  2  1  1
    # unfinished   3  4  7  3   pages whose earlier demotion may be unfinished
    # In stretch 2, 6 + 7 = 13 pages exceed the limit of 10, so the births of this stretch wait for
    # the demotion at boundary 0. After this wait, 6 + 3 = 9 pages fit, and only the 3 pages of
    # boundary 1 may still be unfinished in stretch 3 and in stretch 0 of the next step. In stretch
    # 0, 9 + 3 = 12 pages exceed the limit, too, but there are no births that could wait.
    charged, births = np.array([9, 5, 6, 2]), np.array([0, 2, 1, 1])
    waits = needed_waits(charged, births, [(0, 4), (1, 3)], 10)
    assert waits.tolist() == [-1, -1, 0, -1]


def test_a_wait_may_refer_to_the_previous_step() -> None:
    waits = needed_waits(np.array([8, 1, 1, 9]), np.array([2, 0, 0, 0]), [(3, 4)], 10)
    assert waits.tolist() == [3, -1, -1, -1]
