# SPDX-License-Identifier: Apache-2.0
"""Lives of the toy profile's chunks: the memory they take and the accesses they serve."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.plan.items import chunks
from sentineld.plan.lives import Lives
from tests.unit.plan.toys import toy_profile

STATE, PARAMETER = 3, 4
ITEMS = chunks(toy_profile(), np.array([STATE, PARAMETER]), 4)
"""The state's four pages are read in stretch 3, the parameter's two pages in 1, 2 and 3."""


def lives(*drawn: str) -> Lives:
    """The lives that the words describe: one word per chunk.

    One letter per stretch, from the chunk's birth on. F: fast; s: slow; D: being demoted; U: being
    promoted.
    """
    table = np.array([list(word) for word in drawn]).T
    moving = (table == "D") | (table == "U")
    return Lives(np.zeros(len(drawn)), (table == "F") | (table == "D"), moving)


def test_a_chunk_takes_fast_memory_while_it_is_fast_or_in_flight() -> None:
    held = lives("DsUF", "ssss").held
    assert held[:, 0].tolist() == [True, False, True, True]
    assert not held[:, 1].any()


@pytest.mark.parametrize(
    ("state", "parameter", "served"),
    [
        ("FFFF", "FFFF", [4, 6]),
        ("ssss", "ssss", [0, 0]),
        ("DsUF", "DsUF", [4, 2]),
        ("FFFD", "FFFD", [0, 4]),  # accesses to pages in flight count as slow
        ("sssU", "sssU", [0, 0]),
    ],
)
def test_accesses_are_served_fast_unless_in_flight(
    state: str, parameter: str, served: list[int]
) -> None:
    assert lives(state, parameter).served(ITEMS).tolist() == served
