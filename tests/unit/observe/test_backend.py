# SPDX-License-Identifier: Apache-2.0
"""Areas of memory, and the summary of a backend's capabilities."""

from __future__ import annotations

import numpy as np

from sentineld.model.records import ACCESS_WRITE
from sentineld.observe import backends
from sentineld.observe.backend import NO_NODE, merge_pages

PAGE = 4096


def test_equal_adjacent_pages_become_one_area() -> None:
    pages = np.array([3, 4, 5, 6, 9], np.uint64)
    flags = np.array([0, 0, ACCESS_WRITE, ACCESS_WRITE, ACCESS_WRITE], np.uint8)
    areas = merge_pages(pages, flags)
    assert areas["start"].tolist() == [3 * PAGE, 5 * PAGE, 9 * PAGE]
    assert areas["bytes"].tolist() == [2 * PAGE, 2 * PAGE, PAGE]
    assert areas["flags"].tolist() == [0, ACCESS_WRITE, ACCESS_WRITE]
    assert set(areas["node"]) == {NO_NODE}
    assert set(areas["heat"]) == {1.0}


def test_pages_on_different_nodes_are_different_areas() -> None:
    pages = np.array([1, 2], np.uint64)
    areas = merge_pages(pages, np.zeros(2, np.uint8), np.array([0, 1], np.uint8))
    assert areas["node"].tolist() == [0, 1]
    assert len(merge_pages(pages[:0], np.zeros(0, np.uint8))) == 0


def test_summaries_of_capabilities() -> None:
    summaries = {one.name: one.capabilities.summary() for one in backends.BACKENDS}
    expected = {
        "module": "reads and writes, by page, per stretch, with nodes",
        "damon": "accesses, without distinguishing reads from writes, by region, per step, "
        "with frequency",
        "pagemap-scan": "writes only, by page, per step",
        "soft-dirty": "writes only, by page, per step",
        "shim": "reads and writes, by tensor, per stretch",
    }
    assert summaries.items() >= expected.items()
