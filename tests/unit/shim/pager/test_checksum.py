# SPDX-License-Identifier: Apache-2.0
"""The checksums of pages in the file. Word w of a page is in lane w % LANES; see checksum.c."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

BYTES = 4096
LANES = 32  # checksum.c
ROWS = BYTES // 8 // LANES


def checksum(library: ctypes.CDLL, page: npt.NDArray[np.uint64]) -> int:
    """The checksum of the page, which is the same with and without vector instructions."""
    found: int = library.checksum(page.ctypes.data, BYTES)
    assert library.checksum_portable(page.ctypes.data, BYTES) == found
    return found


def random_page(seed: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 1 << 64, BYTES // 8, np.uint64)


def with_flipped_signs(
    page: npt.NDArray[np.uint64], number_bytes: int, numbers: Iterable[int]
) -> npt.NDArray[np.uint64]:
    """A copy of the page with flipped signs of these numbers. A number has `number_bytes` bytes."""
    changed = page.copy()
    signs = changed.view(np.uint8)[number_bytes - 1 :: number_bytes]
    signs[list(numbers)] ^= 0x80
    return changed


@given(seed=st.integers(0, 2**32 - 1), word=st.integers(0, 511), bit=st.integers(0, 63))
def test_the_checksum_finds_any_changed_word(
    library: ctypes.CDLL, seed: int, word: int, bit: int
) -> None:
    page = random_page(seed)
    before = checksum(library, page)
    page[word] ^= np.uint64(1 << bit)
    assert checksum(library, page) != before


@pytest.mark.parametrize("first", [1, 63, 517, 959])
def test_the_signs_of_three_floats_of_a_lane_do_not_cancel_out(
    library: ctypes.CDLL, first: int
) -> None:
    """Three signs change: that of a word's second float, and those of both floats of the next word
    in the same lane. The last two changes must not undo the first one in the checksum."""
    page = random_page(first)
    changed = with_flipped_signs(page, 4, (first, first + 63, first + 64))
    assert checksum(library, changed) != checksum(library, page)


@pytest.mark.parametrize("number_bytes", [2, 4, 8])
@given(
    seed=st.integers(0, 2**32 - 1),
    row=st.integers(0, ROWS - 2),
    lane=st.integers(0, LANES - 1),
)
def test_all_sets_of_changed_signs_have_different_checksums(
    library: ctypes.CDLL, number_bytes: int, seed: int, row: int, lane: int
) -> None:
    """The changed numbers lie in two consecutive words of a lane."""
    page = random_page(seed)
    numbers = [
        word * 8 // number_bytes + number
        for word in (row * LANES + lane, (row + 1) * LANES + lane)
        for number in range(8 // number_bytes)
    ]
    sets = [chosen for count in range(len(numbers) + 1) for chosen in combinations(numbers, count)]
    found = {checksum(library, with_flipped_signs(page, number_bytes, chosen)) for chosen in sets}
    assert len(found) == len(sets) == 1 << len(numbers)
