# SPDX-License-Identifier: Apache-2.0
"""The Sentinel paper's schedule: hand-computed cases, and general properties for random chunks.

The letters are those of drawn.py: F: fast; s: slow; D: being demoted; U: being promoted. This file
adds L: being promoted, late by plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.plan.items import Items
from sentineld.policies.lp.relax import used_pages
from sentineld.policies.sentinel.interval_moves import IntervalSchedule, IntervalScheduler
from tests.unit.policies.sentinel.drawn import drawn, items

PLENTY = 9.0


def scheduled(
    some: Items, stretches: int, room: float = PLENTY, moves: float = PLENTY
) -> IntervalSchedule:
    """The schedule for intervals of `stretches` stretches. moves: pages that each stretch can
    move."""
    return IntervalScheduler(some, room, np.full(some.stretch_count, moves)).schedule(stretches)


def lives(found: IntervalSchedule) -> list[str]:
    words = drawn(found.lives.fast, found.lives.moving)
    late = found.late.T.tolist()
    return [
        "".join("L" if is_late else letter for letter, is_late in zip(word, row, strict=True))
        for word, row in zip(words, late, strict=True)
    ]


@pytest.mark.parametrize(
    ("use", "stretches", "life"),
    [
        # The chunk is promoted in the interval before its use and evicted in the interval after it.
        (3, 1, "DsUF"),
        (0, 1, "FDsU"),
        # The chunk stays fast in the interval 0-1, because the next interval uses it.
        (3, 2, "FFFF"),
        # In stretch 1, the chunk is evicted: its use in the interval 0-1 is over, and the interval
        # 2-3 does not use it. In stretch 2, it is promoted, because the interval after 2-3 (0-1 of
        # the next step) uses it.
        (0, 2, "FDUF"),
        # If the interval is the whole step, it is also the next interval.
        (2, 4, "FFFF"),
    ],
)
def test_a_chunk_is_promoted_for_the_next_interval(use: int, stretches: int, life: str) -> None:
    assert lives(scheduled(items((use,)), stretches)) == [life]


@pytest.mark.parametrize(
    ("room", "moves", "expected", "without_room"),
    [
        (2.0, PLENTY, ["ssss", "sUFD", "sUFD"], 1),
        # Only one chunk can move in each stretch. The least accessed chunk is promoted late, and is
        # evicted first.
        (PLENTY, 1.0, ["sLFD", "DUFF", "FFFF"], 0),
        (2.0, 1.0, ["ssss", "sUFD", "DLFF"], 1),
        (PLENTY, 0.0, ["FFFF", "FFFF", "FFFF"], 0),  # nothing can be evicted
    ],
    ids=["room", "time", "both", "no moves"],
)
def test_the_most_accessed_chunks_are_promoted_first(
    room: float, moves: float, expected: list[str], without_room: int
) -> None:
    some = items((2,), (2,), (2,))
    some.worth[2] = 1, 3, 2
    found = scheduled(some, 1, room, moves)
    assert lives(found) == expected
    assert found.without_room == without_room


def test_room_that_takes_many_steps_to_fill_is_filled() -> None:
    # In each stretch, only one of the 40 chunks can move. When all chunks are fast, none moves.
    found = scheduled(items(*[(0,)] * 40), 4, room=41.0, moves=1.0)
    assert lives(found) == ["FFFF"] * 40
    assert found.unsteady == 0


def test_counts_of_intervals_with_promotions_left() -> None:
    # Seven stretches and intervals of three: 0-2, 3-5 and 6. The chunks are used in the last
    # interval.
    some = items((6,), (6,), (6,), stretches=7)
    found = scheduled(some, 3, room=2.0, moves=1.0)
    # Two of the chunks are promoted in interval 3-5. They are evicted in interval 0-2, because
    # neither this interval nor the next one uses them. Interval 3-5 is the only interval at whose
    # end a chunk still has to be promoted.
    assert lives(found) == ["DssUFFF", "FDssUFF", "sssssss"]
    assert found.without_room == 1


def test_what_an_interval_leaves_for_lack_of_time_is_promoted_late() -> None:
    # Intervals of two: 0-1, 2-3, 4-5 and 6. There is room for all chunks. Stretches 4 and 5 have
    # time to move one chunk each: the first and the second one. The third chunk begins to move in
    # stretch 5, too, which has no time for it, so its promotion is late by plan.
    found = scheduled(items((6,), (6,), (6,), stretches=7), 2, room=3.0, moves=1.0)
    assert lives(found) == ["DsssUFF", "FDsssUF", "FFDssLF"]
    assert found.without_room == 0


def test_the_less_accessed_tensors_stay_slow_if_steps_are_not_alike() -> None:
    # There is room for one of the three chunks, and each chunk is used in a different stretch. If
    # no chunk were kept slow, the chunks would be promoted in turn, each in a different step.
    found = scheduled(items((0,), (2,), (4,), stretches=5), 1, room=1.0, moves=2.0)
    assert lives(found) == ["sssss", "sssss", "DssUF"]
    assert found.unsteady == 2


def test_evictions_come_before_promotions() -> None:
    # In stretch 2, chunk 0 has to be evicted, because its use in stretch 1 is over, and chunk 1 has
    # to be promoted for its use in stretch 3. The first schedule below has time for only one of
    # these two moves.
    assert lives(scheduled(items((1,), (3,)), 1, moves=1.0)) == ["LFDs", "DsLF"]
    assert lives(scheduled(items((1,), (3,)), 1, moves=2.0)) == ["UFDs", "DsUF"]


def tensors(*lengths: int, births: tuple[int, ...] | None = None) -> Items:
    """Transient tensors of one chunk, each accessed in the stretch of its birth only. lengths:
    lifetimes in stretches."""
    some = items(*[(0,)] * len(lengths))
    return replace(
        some,
        birth=np.array(births or (0,) * len(lengths)),
        length=np.array(lengths),
        persistent=np.zeros(len(lengths), np.bool_),
    )


def test_births_take_the_room_in_order() -> None:
    assert lives(scheduled(tensors(1, 1), 1, room=1.0)) == ["Fsss", "ssss"]


def test_a_tensor_that_dies_soon_is_not_evicted() -> None:
    # The first tensor dies in stretch 1, the interval's last stretch; the other tensor lives on.
    assert lives(scheduled(tensors(2, 3), 2)) == ["FFss", "FDss"]


def test_tensors_that_are_used_later_are_born_slow() -> None:
    later = tensors(4)
    later.worth[:, 0] = 0, 0, 0, 1
    assert lives(scheduled(later, 1)) == ["ssUF"]
    assert lives(scheduled(later, 2)) == ["FFFF"]


def test_a_life_across_the_step_s_end_continues_in_the_next_step() -> None:
    # The tensor is born in stretch 3 and used again in stretch 1 of the next step.
    across = tensors(3, births=(3,))
    across.worth[:, 0] = 1, 0, 1, 0
    assert lives(scheduled(across, 1)) == ["FFFs"]
    assert lives(scheduled(across, 1, room=0.0)) == ["ssss"]


@st.composite
def random_items(draw: st.DrawFn) -> Items:
    """Some tensors of one to three chunks."""
    count = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    many = draw(st.integers(1, 12))
    parts = rng.integers(1, 4, many)
    tensor = np.repeat(np.arange(many), parts)
    persistent = rng.random(many) < 0.4
    birth = np.where(persistent, 0, rng.integers(0, count, many))
    length = np.where(persistent, count, rng.integers(1, count + 1, many))
    alive = np.arange(count)[:, None] < length[None, :]
    used = (rng.random((count, many)) < 0.4) & alive
    return Items(
        tensor=tensor,
        first_page=np.zeros(len(tensor), np.int64),
        pages=rng.integers(1, 5, len(tensor)),
        birth=birth[tensor],
        length=length[tensor],
        persistent=persistent[tensor],
        worth=(used * rng.integers(1, 9, (count, many)))[:, tensor].astype(np.float64),
    )


@settings(deadline=None)
@given(random_items(), st.integers(1, 9), st.floats(0, 40), st.floats(0, 20))
def test_every_schedule_is_steady_and_keeps_to_the_capacities(
    some: Items, stretches: int, room: float, moves: float
) -> None:
    count = some.stretch_count
    schedule = scheduled(some, min(stretches, count), room, moves)
    found = schedule.lives
    held, moved = used_pages(some, found, some.stretch_of())
    assert held.max() <= room
    late = np.bincount(
        np.broadcast_to(some.stretch_of(), found.fast.shape)[schedule.late],
        np.broadcast_to(some.pages, found.fast.shape)[schedule.late],
        minlength=count,
    )
    assert (moved - late).max() <= moves
    ends = (np.arange(count) + 1) % min(stretches, count) == 0
    ends[-1] = True
    assert not np.any(late[~ends])
    assert not np.any(schedule.late & ~found.moving)
    assert not np.any(schedule.late & found.fast)
    alive = np.arange(count)[:, None] < some.length[None, :]
    assert not np.any((found.fast | found.moving) & ~alive)
    after = found.fast ^ found.moving
    continues = alive[1:]
    assert np.array_equal(found.fast[1:][continues], after[:-1][continues])
    lasting = some.persistent
    assert np.array_equal(found.fast[0, lasting], after[-1, lasting])
    # A transient tensor does not exist yet when the stretch of its birth begins, so it can't move
    # in this stretch.
    assert not found.moving[0, ~lasting].any()
    for one in np.unique(some.tensor[~lasting]):
        assert len(set(found.fast[0, some.tensor == one].tolist())) == 1
    # Pages that a stretch uses are not evicted in it.
    assert not np.any(found.fast & found.moving & (some.worth > 0))


@settings(deadline=None)
@given(random_items(), st.integers(1, 9))
def test_without_limits_all_accesses_are_fast(some: Items, stretches: int) -> None:
    found = scheduled(some, min(stretches, some.stretch_count), 1e9, 1e9)
    assert found.lives.served(some).sum() == some.worth.sum()
    assert found.unsteady == found.without_room == 0
    assert not found.late.any()
