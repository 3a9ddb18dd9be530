# SPDX-License-Identifier: Apache-2.0
"""Packing: no live blocks overlap, and the size is close to the minimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.plan.packing import Packed, alive_together, circular_peak, pack, pack_as_born

EVENTS = 12

blocks = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, EVENTS - 1), st.integers(0, EVENTS - 1)),
    max_size=25,
)


def lives_in(birth: int, death: int) -> set[int]:
    if death > birth:
        return set(range(birth, death))
    return set(range(birth, EVENTS)) | set(range(death))


def arrays(found: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


@pytest.mark.parametrize("how", [pack, pack_as_born])
@given(found=blocks)
def test_live_blocks_never_overlap(
    how: Callable[..., Packed], found: list[tuple[int, int, int]]
) -> None:
    sizes, birth, death = arrays(found)
    packed = how(sizes, birth, death)
    owner: dict[tuple[int, int], int] = {}
    for block, (size, b, d) in enumerate(found):
        for unit in range(size):
            for event in lives_in(b, d):
                key = (int(packed.offsets[block]) + unit, event)
                assert key not in owner, (owner[key], block)
                owner[key] = block
    assert packed.size == max((unit for unit, _ in owner), default=-1) + 1


@given(blocks)
def test_peak_is_the_largest_sum_alive(found: list[tuple[int, int, int]]) -> None:
    sizes, birth, death = arrays(found)
    by_event = [sum(s for s, b, d in found if event in lives_in(b, d)) for event in range(EVENTS)]
    assert circular_peak(sizes, birth, death, EVENTS) == max(by_event)
    assert pack(sizes, birth, death).size >= max(by_event)


@given(blocks, st.integers(0, EVENTS - 1), st.integers(0, EVENTS - 1))
def test_alive_together_is_a_common_event(
    found: list[tuple[int, int, int]], one_birth: int, one_death: int
) -> None:
    _, birth, death = arrays(found)
    one = lives_in(one_birth, one_death)
    expected = [bool(lives_in(b, d) & one) for _, b, d in found]
    assert alive_together(birth, death, one_birth, one_death).tolist() == expected


def test_blocks_that_live_in_turn_overlay() -> None:
    # events     0 1 2 3 4 5      (n): a block of n units; letters: the block is alive
    # A (4)      A A . . . .
    # B (4)      . . B B . .      takes a place that is free again
    # C (4)      C . . . C C      wraps around; is alive together with A, but not with B
    packed = pack(np.array([4, 4, 4]), np.array([0, 2, 4]), np.array([2, 4, 1]))
    assert packed.size == 8
    assert packed.offsets[1] in (packed.offsets[0], packed.offsets[2])


def test_a_new_block_reuses_what_was_just_freed() -> None:
    # events     0 1 2 3 4 5 6 7      (n): a block of n units; letters: the block is alive
    # A (1)      A A A A A A A .      first: packing begins where the fewest units are alive
    # B (4)      . B B . . . . .
    # C (3)      . . . C C . . .      where B was
    # D (1)      . . . . D D D .      right behind C
    # E (4)      . . . . . E . .      behind D, because C's place is too small
    # F (3)      . . . . . . F .      fits exactly where C was
    # G (6)      . . . . . . . G      where A, F, D and the first unit of E were
    birth, death = np.array([0, 1, 3, 4, 5, 6, 7]), np.array([7, 3, 5, 7, 6, 7, 0])
    packed = pack_as_born(np.array([1, 4, 3, 1, 4, 3, 6]), birth, death)
    assert packed.offsets.tolist() == [0, 1, 1, 4, 5, 1, 0]
    assert packed.size == 9


def test_the_step_begins_where_it_is_emptiest() -> None:
    # events     0 1 2 3      (n): a block of n units; letters: the block is alive
    # A (2)      A . A A      born at 2, dies at 1: it is alive when the step ends, but not at 1
    # B (1)      B B B B      always alive, and alone at 1: it gets an unshared place at offset 0
    # C (5)      C . . C      begins where D was: there is no room at offsets below A's
    # D (2)      . . D .      right behind A
    birth, death = np.array([2, 0, 3, 2]), np.array([1, 0, 1, 3])
    packed = pack_as_born(np.array([2, 1, 5, 2]), birth, death)
    assert packed.offsets.tolist() == [1, 0, 3, 3]
    assert packed.size == 8


@given(blocks, st.integers(1, 5))
def test_offsets_are_multiples_of_the_unit(found: list[tuple[int, int, int]], unit: int) -> None:
    sizes, birth, death = arrays(found)
    packed = pack(sizes, birth, death, np.full(len(sizes), unit))
    assert not (packed.offsets % unit).any()
    assert packed.size == (packed.offsets + sizes).max(initial=0)
    for one in range(len(sizes)):
        together = alive_together(birth, death, int(birth[one]), int(death[one]))
        apart = (packed.offsets >= packed.offsets[one] + sizes[one]) | (
            packed.offsets + sizes <= packed.offsets[one]
        )
        assert (apart | ~together | (np.arange(len(sizes)) == one)).all()


def test_three_thousand_tensors_of_a_step_pack_tightly() -> None:
    random = np.random.default_rng(7)
    count = 3000
    birth = random.integers(0, 2 * count, count)
    death = (birth + 1 + random.geometric(0.01, count)) % (2 * count)
    sizes = random.integers(1, 2000, count)
    packed = pack(sizes, birth, death)
    assert packed.size <= 1.15 * circular_peak(sizes, birth, death, 2 * count)
