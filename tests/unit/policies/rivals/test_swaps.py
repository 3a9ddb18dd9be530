# SPDX-License-Identifier: Apache-2.0
"""Swaps in a Book (policies/rivals/swaps.py): their gaps, room and bandwidth.

A swap moves a tensor out and back in during a gap, the time between two uses of the tensor.
with_guest() is a step of six stretches. Four tensors of 64 pages are alive in stretches 2 and 3,
and three in the other stretches. BUDGET is for three.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.policies.rivals.swaps import (
    GAP_MIN,
    Book,
    Gap,
    Part,
    Swap,
    gaps,
    leave_slow,
    open_book,
)
from tests.unit.policies.rivals.guests import with_guest
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

BUDGET = 3 * 64 * PAGE


def test_gaps_by_hand() -> None:
    book = open_book(with_guest(), moving(64), BUDGET)
    assert gaps(book) == [Gap(0, 0, 5), Gap(2, 3, 8)]
    assert book.over.tolist() == [False, False, True, True, False, False]


def usage(book: Book) -> list[int]:
    """Fast pages of each stretch, in units of 64."""
    assert not (book.usage % 64).any()
    return (book.usage // 64).tolist()


def test_a_new_book_has_everything_fast() -> None:
    book = open_book(with_guest(), moving(64), BUDGET)
    assert usage(book) == [3, 3, 4, 4, 3, 3]
    assert book.lanes == pytest.approx([64.0] * 6)
    assert (book.limit, book.swaps) == (3 * 64, [])


def test_a_swap_frees_room_between_its_transfers() -> None:
    book = open_book(with_guest(), moving(64), BUDGET)
    assert book.try_swap(Gap(0, 0, 5))
    assert book.swaps == [Swap(Gap(0, 0, 5), (Part(1, 0, 64),), (Part(4, 0, 64),))]
    # The tensor leaves in stretch 1, so its room is free in stretches 2 and 3. It returns in
    # stretch 4, where it takes its room again.
    assert usage(book) == [3, 3, 3, 3, 3, 3]
    assert book.lanes == pytest.approx([64, 0, 64, 64, 0, 64])
    assert not book.over.any()
    # No bandwidth is left in stretches 1 and 4. Thus tensor 2 could leave only in stretch 5 and
    # return only in stretch 0 of the next step. No stretch lies between these two.
    assert not book.try_swap(Gap(2, 3, 8))


def test_slow_transfers_are_split_over_stretches() -> None:
    # At 40 pages a second, 64 pages take two stretches: 40 pages in one and 24 in the other. They
    # leave as early and return as late as possible.
    profile = lap(8, Life(64, (0, 7)))
    book = open_book(profile, moving(40), 64 * PAGE)
    assert book.try_swap(Gap(0, 0, 7))
    (swap,) = book.swaps
    assert swap.out == (Part(1, 0, 40), Part(2, 40, 24))
    assert swap.back == (Part(5, 0, 24), Part(6, 24, 40))
    assert book.usage.tolist() == [64, 64, 24, 0, 0, 24, 64, 64]
    assert book.lanes == pytest.approx([40, 0, 16, 40, 40, 16, 0, 40])


def test_a_gap_that_is_too_short_for_its_transfers_changes_nothing() -> None:
    profile = lap(8, Life(64, (0, 7)))
    book = open_book(profile, moving(16), 64 * PAGE)
    before = (book.usage.copy(), book.lanes.copy())
    assert not book.try_swap(Gap(0, 0, 7))
    assert np.array_equal(book.usage, before[0])
    assert np.array_equal(book.lanes, before[1])
    assert book.swaps == []


def test_tensors_come_back_as_early_as_room_and_lanes_allow() -> None:
    # Without other tensors, the tensor has room in every stretch.
    profile = lap(8, Life(64, (0, 7)))
    book = open_book(profile, moving(64), 64 * PAGE)
    assert book.try_swap(Gap(0, 0, 7))
    assert book.swaps[0].back == (Part(6, 0, 64),)
    book.hasten()
    assert book.swaps[0].back == (Part(3, 0, 64),)
    assert book.usage.tolist() == [64, 64, 0, 64, 64, 64, 64, 64]
    # Another tensor takes the room in stretches 3 and 4, so the first tensor returns in stretch 5
    # at the earliest.
    full = lap(8, Life(64, (0, 7)), Life(64, (3, 4), (3, 4)))
    book = open_book(full, moving(64), 64 * PAGE)
    assert book.try_swap(Gap(0, 0, 7))
    book.hasten()
    assert book.swaps[0].back == (Part(5, 0, 64),)
    assert usage(book) == [1, 1, 0, 1, 1, 1, 1, 1]


def test_a_slow_tensor_gives_back_its_room_and_its_lanes() -> None:
    book = open_book(with_guest(), moving(64), BUDGET)
    assert book.try_swap(Gap(0, 0, 5))
    book.make_slow(0)
    assert usage(book) == [2, 2, 3, 3, 2, 2]
    assert book.lanes == pytest.approx([64.0] * 6)
    assert book.swaps == []
    assert book.slow.tolist() == [True, False, False, False]
    assert gaps(book) == [Gap(2, 3, 8)]


def test_the_cheapest_tensor_for_its_room_stays_slow() -> None:
    # Stretches 2 and 3 are too full. The first tensor costs the least time if it stays slow.
    book = open_book(with_guest(), moving(64), BUDGET, accesses_slow=True)
    assert leave_slow(book, np.array([1.0, 2.0, 3.0, 4.0])) == 1
    assert book.slow.tolist() == [True, False, False, False]
    assert not book.over.any()


def test_short_lived_tensors_beyond_the_budget_are_slow_or_refused() -> None:
    # Two short-lived tensors have 64 and 16 pages; there is room for 72 pages.
    profile = lap(3, Life(64, (1,), (1, 1)), Life(16, (1,), (1, 1)), Life(32, (0, 2)))
    with pytest.raises(SentinelError, match=r"alive at the same time need 320.0 KiB") as error:
        open_book(profile, moving(64), 72 * PAGE)
    assert error.value.hint
    book = open_book(profile, moving(64), 72 * PAGE, accesses_slow=True)
    assert book.short.tolist() == [1]
    assert book.slow.tolist() == [True, False, False]
    # The small tensor takes room in stretch 1, in which it lives. The persistent tensor takes room
    # in all stretches.
    assert book.usage.tolist() == [32, 16 + 32, 32]
    # The small tensor fits in a quarter of the room, but not in a fifth.
    for share, short in ((0.2, []), (0.25, [1])):
        found = open_book(profile, moving(64), 72 * PAGE, accesses_slow=True, short_share=share)
        assert found.short.tolist() == short
    assert not open_book(profile, moving(64), 112 * PAGE).slow.any()


def test_a_short_lived_tensor_takes_room_only_while_it_lives() -> None:
    # A tensor of 64 pages lives in stretch 2 only. Another tensor of 64 pages is persistent; it is
    # used in stretches 0 and 4.
    profile = lap(5, Life(64, (0, 4)), Life(64, (2,), (2, 2)))
    book = open_book(profile, moving(64), 72 * PAGE)
    assert usage(book) == [1, 1, 2, 1, 1]
    # The persistent tensor leaves in stretch 1 and returns in stretch 3.
    assert book.try_swap(Gap(0, 0, 4))
    assert usage(book) == [1, 1, 1, 1, 1]
    # With `kept`, the short-lived tensor lies in a pool, which takes its room in every stretch.
    assert usage(open_book(profile, moving(64), 72 * PAGE, kept=True)) == [2, 2, 2, 2, 2]


def test_tensors_that_live_one_after_another_share_their_room() -> None:
    # Both tensors are short-lived and live in stretch 1. In the profile made by lap(), both births
    # come before both deaths. If tensor 0 dies before tensor 1 is born, they need room for only one
    # of them.
    profile = lap(3, Life(64, (1,), (1, 1)), Life(64, (1,), (1, 1)))
    assert usage(open_book(profile, moving(64), BUDGET)) == [0, 2, 0]
    assert usage(open_book(one_after_another(profile), moving(64), BUDGET)) == [0, 1, 0]
    # Now tensor 0 lives in stretches 0 and 1, and tensor 1 in stretches 1 and 2. Again, stretch 1
    # needs room for only one of them if tensor 0 dies before tensor 1 is born.
    profile = lap(3, Life(64, (0,), (0, 1)), Life(64, (2,), (1, 2)))
    assert usage(open_book(profile, moving(64), BUDGET)) == [1, 2, 1]
    book = open_book(one_after_another(profile), moving(64), BUDGET, accesses_slow=True)
    assert usage(book) == [1, 1, 1]
    # If tensor 0 is slow, tensor 1 still needs its room in stretch 1.
    book.make_slow(0)
    assert usage(book) == [0, 1, 1]


def one_after_another(profile: Profile) -> Profile:
    """The profile of two tensors, changed so that the first one dies before the second is born."""
    tensors = profile.tensors.copy()
    tensors["birth_event"], tensors["death_event"] = [0, 2], [1, 3]
    return replace(profile, tensors=tensors)


@given(
    st.lists(
        st.tuples(st.integers(16, 96), st.sets(st.integers(0, 9), min_size=1, max_size=4)),
        min_size=1,
        max_size=5,
    ),
    st.integers(10, 200),
    st.booleans(),
)
def test_booked_swaps_fit_their_gaps_and_lanes(
    tensors: list[tuple[int, set[int]]], pages_per_s: int, early: bool
) -> None:
    profile = lap(10, *(Life(pages, tuple(sorted(used))) for pages, used in tensors))
    book = open_book(profile, moving(pages_per_s), sum(pages for pages, _ in tensors) * PAGE)
    whole = book.usage.copy()
    for gap in gaps(book):
        assert gap.until - gap.since > GAP_MIN
        book.try_swap(gap)
    if early:
        book.hasten()
    away = np.zeros((10, len(tensors)), np.int64)
    moved = np.zeros(10)
    for gap, out, back in book.swaps:
        for parts in (out, back):
            assert sum(part.pages for part in parts) == tensors[gap.tensor][0]
            assert all(gap.since < part.position < gap.until for part in parts)
            for part in parts:
                moved[part.position % 10] += part.pages
        assert max(part.position for part in out) + 1 < min(part.position for part in back)
        for position in range(gap.since + 1, gap.until):
            gone = sum(part.pages for part in out if part.position < position)
            gone -= sum(part.pages for part in back if part.position <= position)
            away[position % 10, gap.tensor] += gone
    assert book.usage.tolist() == (whole - away.sum(axis=1)).tolist()
    assert book.lanes == pytest.approx(pages_per_s - moved, abs=1e-9)
    assert (book.lanes >= -1e-6).all()


def test_a_swap_in_begins_where_it_is_told() -> None:
    book = open_book(with_guest(), moving(64), BUDGET)
    assert book.try_swap(Gap(0, 0, 5), begin=3)
    assert book.swaps[0].back == (Part(3, 0, 64),)
    # The swap out takes stretches 1 and 2. A stretch must lie between the two transfers, so the
    # swap in cannot begin before stretch 4. Stretch 4 is too short for the swap in, and no other
    # stretch is left.
    book = open_book(with_guest(), moving(32), BUDGET)
    assert not book.try_swap(Gap(0, 0, 5), begin=3)
    # Stretch 6 is too short for the whole swap in, so the swap in begins in stretch 5.
    book = open_book(lap(8, Life(64, (0, 7))), moving(32), BUDGET)
    assert book.try_swap(Gap(0, 0, 7), begin=6)
    assert book.swaps[0].out == (Part(1, 0, 32), Part(2, 32, 32))
    assert book.swaps[0].back == (Part(5, 0, 32), Part(6, 32, 32))


def test_a_swap_out_at_once_exceeds_the_bandwidth() -> None:
    book = open_book(lap(8, Life(64, (0, 7))), moving(32), BUDGET)
    assert book.try_swap(Gap(0, 0, 7), at_once=True)
    assert book.swaps[0].out == (Part(1, 0, 64),)
    # Stretch 1 has no time for 32 of the 64 pages, so the process has to wait for these pages.
    assert book.lanes == pytest.approx([32, -32, 32, 32, 32, 0, 0, 32])


def test_a_copy_changes_independently() -> None:
    book = open_book(with_guest(), moving(64), 3 * 64 * PAGE)
    copy = book.copy()
    swap = copy.possible(Gap(0, 0, 5))
    assert swap is not None
    assert copy.swaps == []  # possible() does not add the swap
    copy.add(swap)
    copy.make_slow(1)
    assert (copy.swaps, copy.slow.any()) == ([swap], True)
    copy.make_slow(3)
    fresh = open_book(with_guest(), moving(64), 3 * 64 * PAGE)
    assert (book.swaps, book.slow.any()) == ([], False)
    assert book.usage.tolist() == fresh.usage.tolist()
    assert book.occupied.tolist() == fresh.occupied.tolist()
    assert book.lanes.tolist() == fresh.lanes.tolist()
