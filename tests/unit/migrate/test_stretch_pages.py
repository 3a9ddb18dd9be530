# SPDX-License-Identifier: Apache-2.0
"""The table of the pages that are born or dropped in consecutive stretches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.stretch_pages import StretchPages

PAGES = 40
EVENTS = st.lists(
    st.tuples(
        st.integers(-1, 1),
        st.tuples(st.integers(0, PAGES), st.integers(0, PAGES)).map(
            lambda one: slice(*sorted(one))
        ),
    ),
    max_size=6,
)


@given(st.lists(EVENTS, min_size=1, max_size=2))
def test_the_table_has_the_pages_of_all_events(events: list[list[tuple[int, slice]]]) -> None:
    table = StretchPages(events)
    nodes = np.arange(PAGES, dtype=np.int8)
    taken = table.take(nodes)
    inside = {page for one in events for _, span in one for page in range(PAGES)[span]}
    assert taken.tolist() == sorted(inside)
    taken[:] = -1
    assert nodes.tolist() == list(range(PAGES))  # take() has returned a copy
    taken = table.take(nodes)
    assert taken[table.rows(np.array(sorted(inside), np.int64))].tolist() == sorted(inside)
    for one, rows in zip(events, table.stretches, strict=True):
        for (node, span), (same, row) in zip(one, rows, strict=True):
            assert node == same
            assert taken[row].tolist() == list(range(PAGES)[span])
    for all_events, rising in zip(table.stretches, table.rising, strict=True):
        assert rising == all_events[: len(rising)]
        assert not rising or rising[-1][0] != -1
        assert all(node == -1 for node, _ in all_events[len(rising) :])
