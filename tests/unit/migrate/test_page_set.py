# SPDX-License-Identifier: Apache-2.0
"""Sets of pages, compared with Python's sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.page_set import PageSet

PAGES = 30
PAGE = st.integers(0, PAGES)
RANGE = st.tuples(PAGE, PAGE).map(lambda one: slice(*sorted(one)))


@given(st.lists(RANGE, max_size=6), RANGE)
def test_a_set_has_the_pages_of_all_ranges(ranges: list[slice], wanted: slice) -> None:
    found = PageSet(ranges)
    inside = {page for one in ranges for page in range(PAGES)[one]}
    assert [page for one in found.ranges for page in range(PAGES)[one]] == sorted(inside)
    assert all(one.stop < other.start for one, other in pairwise(found.ranges))
    assert found.has(np.arange(PAGES)).tolist() == [page in inside for page in range(PAGES)]
    within = [page for one in found.within(wanted) for page in range(PAGES)[one]]
    assert within == sorted(inside & set(range(PAGES)[wanted]))
