# SPDX-License-Identifier: Apache-2.0
"""Batches of page-outs, and the swap that sessions may fill."""

from __future__ import annotations

import numpy as np

from sentineld.heat.paging_out import batches, split, usable_bytes
from sentineld.host.swap import Swap
from sentineld.model.records import PAGE_RUN_DTYPE


def test_long_runs_are_cut_and_short_runs_share_a_batch() -> None:
    runs = np.array([(100, 3, True), (200, 25, True), (300, 2, True)], PAGE_RUN_DTYPE)
    found = [batch.tolist() for batch in batches(runs, 10)]
    assert found == [
        [(100, 3, True), (200, 10, True)],
        [(210, 10, True)],
        [(220, 5, True), (300, 2, True)],
    ]
    assert batches(runs[:0], 10) == []


def test_runs_are_split_after_a_number_of_pages() -> None:
    runs = np.array([(100, 3, False), (200, 25, False), (300, 2, False)], PAGE_RUN_DTYPE)
    first, rest = split(runs, 13)
    assert first.tolist() == [(100, 3, False), (200, 10, False)]
    assert rest.tolist() == [(210, 15, False), (300, 2, False)]
    for pages, counts in ((0, (0, 3)), (28, (2, 1)), (99, (3, 0))):
        assert tuple(map(len, split(runs, pages))) == counts


def test_sessions_leave_some_swap_free() -> None:
    assert usable_bytes(Swap(1600, 300)) == 1200
    assert usable_bytes(Swap(1600, 1550)) == 0
    assert usable_bytes(Swap(0, 0)) == 0
