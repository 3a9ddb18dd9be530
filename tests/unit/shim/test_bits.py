# SPDX-License-Identifier: Apache-2.0
"""Bit maps, compared with lists of bits."""

from __future__ import annotations

import ctypes
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

WORDS = 3
BITS = 64 * WORDS


runs = st.lists(st.tuples(st.integers(0, BITS - 1), st.integers(1, BITS), st.booleans()))


@given(changes=runs, wanted=st.integers(1, BITS))
def test_the_best_run_is_the_shortest_that_is_long_enough(
    harness: ctypes.CDLL, changes: list[tuple[int, int, bool]], wanted: int
) -> None:
    words = (ctypes.c_uint64 * WORDS)()
    bits = np.zeros(BITS, bool)
    for first, count, on in changes:
        count = min(count, BITS - first)
        harness.test_bits_set(words, first, count, on)
        bits[first : first + count] = on
    assert (np.unpackbits(np.array(words).view(np.uint8), bitorder="little") == bits).all()

    lengths = [len(list(run)) for on, run in groupby(bits) if on]
    enough = [length for length in lengths if length >= wanted]
    first = ctypes.c_uint32()
    found = harness.test_bits_best_run(words, WORDS, wanted, ctypes.byref(first))
    assert found == min(enough, default=max(lengths, default=0))
    run = bits[first.value : first.value + found]
    assert run.all()
    if found:
        assert not bits[first.value - 1 : first.value].any()
        assert not bits[first.value + found : first.value + found + 1].any()
