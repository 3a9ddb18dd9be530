# SPDX-License-Identifier: Apache-2.0
"""The checksums of pages in the file."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import given
from hypothesis import strategies as st


@given(seed=st.integers(0, 2**32 - 1), word=st.integers(0, 511), bit=st.integers(0, 63))
def test_the_checksum_finds_any_changed_word(
    library: ctypes.CDLL, seed: int, word: int, bit: int
) -> None:
    page = np.random.default_rng(seed).integers(0, 1 << 64, 512, np.uint64)

    def checksums() -> set[int]:
        """The checksums of the page, with and without vector instructions."""
        found = {library.checksum(page.ctypes.data, 4096)}
        return found | {library.checksum_portable(page.ctypes.data, 4096)}

    (before,) = checksums()
    page[word] ^= np.uint64(1 << bit)
    (after,) = checksums()
    assert before != after
