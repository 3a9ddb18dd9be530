# SPDX-License-Identifier: Apache-2.0
"""Pages of tensors, and the number of stretches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.profile import TENSOR_DTYPE, page_spans
from tests.unit.plan.toys import toy_profile

PAGE = 4096
HUGE_PAGE = 2 << 20


def spans(address: int, size: int, page_bytes: int = PAGE) -> tuple[int, int]:
    table = np.zeros(1, TENSOR_DTYPE)
    table["address"], table["bytes"] = address, size
    first, past = page_spans(table, page_bytes)
    return int(first[0]), int(past[0])


@pytest.mark.parametrize(
    ("address", "size", "pages"),
    [
        (3 * PAGE, PAGE, (3, 4)),
        (3 * PAGE, PAGE + 1, (3, 5)),
        (3 * PAGE + 100, PAGE - 100, (3, 4)),
        (3 * PAGE + 100, PAGE, (3, 5)),
        (3 * PAGE, 0, (3, 3)),
        ((1 << 47) - PAGE, PAGE, ((1 << 35) - 1, 1 << 35)),
    ],
)
def test_a_page_counts_if_any_byte_of_it_is_used(
    address: int, size: int, pages: tuple[int, int]
) -> None:
    assert spans(address, size) == pages


@given(
    st.integers(0, 1 << 47), st.integers(1, 1 << 40), st.sampled_from([PAGE, 16 * PAGE, HUGE_PAGE])
)
def test_the_pages_hold_the_first_and_the_last_byte(
    address: int, size: int, page_bytes: int
) -> None:
    first, past = spans(address, size, page_bytes)
    assert first * page_bytes <= address < (first + 1) * page_bytes
    assert (past - 1) * page_bytes <= address + size - 1 < past * page_bytes


def test_a_profile_has_a_stretch_per_boundary() -> None:
    assert toy_profile().stretch_count == 4
